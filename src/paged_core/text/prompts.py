"""The forms in which prompts may be given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paged_core.errors import RequestError
from paged_core.sampling_params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": [...]}``."""


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one or several prompts as a list; a flat list of integers is one.

    Raises:
        RequestError: they are neither.
    """
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, (bytes, bytearray)) or not isinstance(prompts, Iterable):
        raise RequestError(
            f"prompts are texts or lists of token ids, one or several, and not {prompts!r}"
        )
    listed: list[Any] = list(prompts)
    if listed and all(_is_token_id(item) for item in listed):
        return [listed]
    return listed


def per_prompt(name: str, values: Any, num_prompts: int) -> list[Any]:
    """Return one value per prompt: the same for all, or those that are listed.

    Raises:
        RequestError: there are more or fewer of them than prompts.
    """
    if isinstance(values, (SamplingParams, int)):
        return [values] * num_prompts
    if not isinstance(values, Iterable):
        raise RequestError(f"{name} cannot be {values!r}; give one for each prompt, or one")
    listed = list(values)
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
    if not isinstance(prompt, Iterable) or isinstance(prompt, (bytes, bytearray)):
        raise RequestError(f"a prompt is text or a list of token ids, not {prompt!r}")
    listed: list[Any] = list(prompt)
    for item in listed:
        if not _is_token_id(item):
            raise RequestError(f"a prompt is text or a list of token ids, which {item!r} is not")
    return tuple(map(int, listed))


def _is_token_id(item: object) -> bool:
    return hasattr(item, "__index__") and not isinstance(item, bool)
