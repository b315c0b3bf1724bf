"""What a chat template is told besides the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paged_core.errors import RequestError
from paged_core.field_rules import Rule, entries, flag, instance, optional, text

_RULES: Mapping[str, Rule] = {
    "tools": lambda name, value: entries(name, value, "a list of JSON schemas of functions"),
    "add_generation_prompt": flag,
    "continue_final_message": flag,
    "chat_template": optional(text),
}


def chat_options(*, chat_template_kwargs: Any, **options: Any) -> dict[str, Any]:
    """Return the options of a template: those of ``LLM.chat``, and what the template alone knows.

    Raises:
        RequestError: one of them is none that it may be, or is given twice.
    """
    mapping = optional(instance(Mapping, "a mapping of names to values"))
    more: dict[Any, Any] = dict(mapping("chat_template_kwargs", chat_template_kwargs) or {})
    checked = {name: rule(name, options[name]) for name, rule in _RULES.items()}
    for name in more:
        text("a name in chat_template_kwargs", name)
        if name in checked:
            raise RequestError(f"{name} is in chat_template_kwargs; give it to chat() itself")
    return {**more, **checked}
