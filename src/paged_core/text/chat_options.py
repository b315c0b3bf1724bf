"""What a chat template is told besides the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paged_core.errors import RequestError
from paged_core.field_rules import Rule, flag, instance, listed, optional, text

_RULES: Mapping[str, Rule] = {
    "tools": listed(lambda tool: isinstance(tool, Mapping), "a list of JSON schemas of functions"),
    "add_generation_prompt": flag,
    "continue_final_message": flag,
    "chat_template": optional(text),
}
_OWN = {*_RULES, "messages", "conversation", "tokenize", "self"}
"""Names that a template's own options cannot have."""
_own_options = optional(instance(Mapping, "a mapping of names to values"))


def chat_options(chat_template_kwargs: Any, **options: Any) -> dict[str, Any]:
    """Return the options of a template: those of ``LLM.chat``, and what the template alone knows.

    Raises:
        RequestError: one of them is none that it may be, or is given twice.
    """
    own: dict[Any, Any] = dict(_own_options("chat_template_kwargs", chat_template_kwargs) or {})
    for name in own:
        if text("a name in chat_template_kwargs", name) in _OWN:
            raise RequestError(f"chat_template_kwargs has {name!r}; give it to chat() itself")
    return {**own, **{name: rule(name, options[name]) for name, rule in _RULES.items()}}
