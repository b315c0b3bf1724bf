"""From what a user gives as a prompt to its token ids, in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from paged_core.errors import RequestError
from paged_core.field_rules import flag, optional, shown
from paged_core.field_rules import text as as_text
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.text.prompts import Prompt, as_token_ids

_KEYS = frozenset({"prompt", "prompt_token_ids", "add_special_tokens"})

_CHARACTERS_PER_TOKEN = 4
_SLACK = 64
"""Tokens at the end of a part that may become fewer with what follows."""


def encode_within(
    encode: Callable[[str], Sequence[int]], text: str, max_tokens: int
) -> tuple[int, ...]:
    """Return the token ids of ``text``, without reading all of one that has far too many.

    Raises:
        RequestError: its beginning has more than ``max_tokens`` already.
    """
    end = _CHARACTERS_PER_TOKEN * max_tokens
    while end < len(text):
        if len(encode(text[:end])) > max_tokens + _SLACK:
            raise RequestError(
                f"the prompt has {len(text)} characters, of which the first {end} are more than "
                f"the {max_tokens} tokens that a sequence may have; shorten it"
            )
        end *= 4
    return tuple(encode(text))


def encode_prompt(
    prompt: Prompt, need_tokenizer: Callable[[str], Tokenizer], max_tokens: int | None
) -> tuple[str | None, tuple[int, ...]]:
    """Return a prompt's text, if it has one, and its token ids.

    Args:
        need_tokenizer: takes what needs a tokenizer, and raises if there is none.
        max_tokens: of more, text is refused; ``None``: it may have any number.

    Raises:
        RequestError: it is no prompt, or too long.
    """
    options: dict[str, bool] = {}
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - _KEYS
        if unknown or not prompt:
            raise RequestError(
                "a prompt given as a mapping has the key 'prompt' or 'prompt_token_ids', not "
                f"{', '.join(map(shown, unknown)) or 'none'}"
            )
        if "prompt_token_ids" in prompt:
            text = optional(as_text)("prompt", prompt.get("prompt"))
            return text, as_token_ids(prompt["prompt_token_ids"])
        special = flag("add_special_tokens", prompt.get("add_special_tokens", True))
        options, prompt = {"add_special_tokens": special}, prompt.get("prompt") or ""
    if not isinstance(prompt, str):
        return None, as_token_ids(prompt)
    if not prompt:
        raise RequestError("the prompt is empty; it needs at least one character")
    encode = partial(need_tokenizer("text").encode, **options)
    if max_tokens is None:
        return prompt, tuple(encode(prompt))
    return prompt, encode_within(encode, prompt, max_tokens)
