"""The forms in which prompts may be given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paged_core.errors import RequestError
from paged_core.field_rules import Rule, entries, refusal, token_ids

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": [...]}``; with
``"add_special_tokens": False`` text has the special tokens already."""


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


def _is_token_id(item: object) -> bool:
    return hasattr(item, "__index__") and not isinstance(item, bool)
