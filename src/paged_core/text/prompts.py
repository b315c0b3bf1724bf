"""Prompts: the forms in which they may be given, and their token ids, found in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from paged_core.errors import RequestError
from paged_core.field_rules import Rule, entries, flag, refusal, shown, token_ids
from paged_core.interfaces.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": [...]}``; with
``"add_special_tokens": False`` text has the special tokens already."""

_KEYS = frozenset({"prompt", "prompt_token_ids", "add_special_tokens"})

CHARACTERS_PER_TOKEN = 4
"""About as many as a token of ordinary text has."""
_SLACK = 64
"""Tokens at the end of a part that may become fewer with what follows."""


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one or several prompts as a list; a flat list of integers is one.

    Raises:
        RequestError: they are neither.
    """
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    what = "texts or lists of token ids, one or several"
    if prompts is None:
        raise refusal("prompts", f"be {what}", prompts)
    listed = entries("prompts", prompts, what)
    if listed and all(_is_token_id(item) for item in listed):
        return [listed]
    return listed


def as_conversations(messages: object) -> list[list[Any]]:
    """Return one conversation or several as a list; a list of mappings is one.

    Raises:
        RequestError: they are neither.
    """
    what = "messages such as {'role': 'user', 'content': 'Hello'}, or a list of conversations"
    if messages is None:
        raise refusal("messages", f"be {what}", messages)
    listed = entries("messages", messages, what)
    if listed and isinstance(listed[0], Mapping):
        return [listed]
    return [entries("messages", conversation, what) for conversation in listed]


def per_prompt(name: str, values: Any, num_prompts: int, rule: Rule) -> list[Any]:
    """Return one value per prompt: the same for all, or those that are listed.

    Raises:
        RequestError: there are more or fewer of them than prompts, or ``rule`` refuses one.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        return [rule(name, values)] * num_prompts
    listed = [rule(name, value) for value in entries(name, values, "one for each prompt, or one")]
    if len(listed) != num_prompts:
        raise RequestError(
            f"{name} has {len(listed)} entries for {num_prompts} prompts; give one for each, or one"
        )
    return listed


def as_token_ids(prompt: object) -> tuple[int, ...]:
    """Return the token ids of a prompt that is not text.

    Raises:
        RequestError: it is not a list of integers.
    """
    if prompt is None:
        raise RequestError("a prompt is text or a list of token ids, not None")
    return token_ids("a prompt that is not text", prompt)


def encode_within(
    encode: Callable[[str], Sequence[int]], text: str, max_tokens: int
) -> tuple[int, ...]:
    """Return the token ids of ``text``, without reading all of one that has far too many.

    Raises:
        RequestError: its beginning has more than ``max_tokens`` already.
    """
    end = CHARACTERS_PER_TOKEN * max_tokens
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
            if len(prompt) > 1:
                raise RequestError(
                    "a prompt given as 'prompt_token_ids' has no other key: the engine could not "
                    "tell whether a text beside them is the same"
                )
            return None, as_token_ids(prompt["prompt_token_ids"])
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


def _is_token_id(item: object) -> bool:
    return hasattr(item, "__index__") and not isinstance(item, bool)
