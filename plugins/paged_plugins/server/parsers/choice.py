"""Which parsers a model has: those that the settings name, or what its chat template shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from paged_core.errors import PagedCoreError
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.log import get_logger
from paged_core.plugins.making import blaming, make_component
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.server.parsers.reasoning_parser import ReasoningFormat, ReasoningParser
from paged_plugins.server.parsers.tool_parser import ToolFormat, ToolParser


def _conversation(arguments: Any) -> Sequence[Mapping[str, Any]]:
    """Return a conversation with a call."""
    function = {"name": "probe", "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    return (
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "probe", "tool_call_id": "abcdefghi", "content": "answer"},
    )


_CONVERSATIONS = (_conversation({"place": "here"}), _conversation('{"place": "here"}'))
"""Templates differ in whether arguments are an object or a text."""
_THOUGHTS: Sequence[Mapping[str, Any]] = (
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": "answer", "reasoning_content": "hypothesis"},
)
_MARKS = {
    "hermes": r"<tool_call>\s*\{\s*\"name\": ?\"probe\"",
    "qwen3_coder": r"<function=probe>",
    "glm4": r"<tool_call>probe",
    "gpt_oss": r"to=functions\.probe",
    "kimi_k2": r"<\|tool_call_begin\|>",
    "deepseek_v3": "function<\uff5ctool\u2581sep\uff5c>probe",
    "deepseek_v31": "probe<\uff5ctool\u2581sep\uff5c>",
    "mistral": r"\[TOOL_CALLS\]\s*(\[|probe)",
    "llama3_json": r"\{\s*\"name\": ?\"probe\", ?\"parameters\": ?\{",
    "llama4_pythonic": r"<\|python_start\|>\[probe\(place=",
    "pythonic": r"\[probe\(place=",
}
"""By parser: how a call looks in a prompt that has one."""

_ASKED: Mapping[str, tuple[Callable[[Any], object], type]] = {
    "tool_parser": (lambda made: made.parser({"probe": {}}), ToolParser),
    "reasoning_parser": (lambda made: made.parser(""), ReasoningParser),
}
"""By slot: how a component is asked for a parser, and what that is."""

_log = get_logger()


class Parsers:
    """The parsers of a model; those that the settings name are made at once.

    Args:
        tokenizer: returns the model's, once it is known.

    Raises:
        PluginError: one cannot be made.
    """

    def __init__(
        self,
        settings: EngineSettings,
        registry: Registry,
        tokenizer: Callable[[], Tokenizer | None],
    ) -> None:
        self._settings, self._registry, self._asked = settings, registry, tokenizer
        if self._name("tool_parser") != "auto":
            _ = self.tools
        if self.is_reasoning_named:
            _ = self.reasoning

    @property
    def _tokenizer(self) -> Tokenizer | None:
        return self._asked()

    @cached_property
    def tools(self) -> ToolFormat | None:
        """Form in which the model writes calls; ``None``: that is not known."""
        made: ToolFormat | None = self._made("tool_parser", self._shown_tools)
        return made

    @cached_property
    def forced_tools(self) -> ToolFormat:
        """Form in which calls are forced: any will do where the model's own is not known."""
        return self.tools or self._make("tool_parser", "hermes")

    @cached_property
    def reasoning(self) -> ReasoningFormat | None:
        """Marks of the model's thoughts; ``None``: it has none, or that is not known."""
        made: ReasoningFormat | None = self._made("reasoning_parser", self._shown_thoughts)
        return made

    def special_tokens(self, marks: Collection[str]) -> dict[str, int]:
        """Return the ids of those marks that are special tokens of the model."""
        if (tokenizer := self._tokenizer) is None:
            return {}
        found: dict[str, int] = {}
        for mark in marks:
            for token in tokenizer.encode(mark, add_special_tokens=False):
                text = tokenizer.decode([token], skip_special_tokens=False)
                if text.strip() == mark and not tokenizer.decode([token]):
                    found[mark] = token
        return found

    @property
    def is_reasoning_named(self) -> bool:
        """Return whether the settings name the parser of thoughts."""
        return self._name("reasoning_parser") != "auto"

    def _name(self, slot: str) -> str:
        return str(getattr(self._settings, slot).name)

    def _made(self, slot: str, find: Any) -> Any:
        if (name := self._name(slot)) != "auto":
            return self._make(slot, name)
        found = find()
        _log.info("parser_chosen", slot=slot, name=found, reason="the chat template shows it")
        return None if found is None else self._make(slot, found)

    def _make(self, slot: str, name: str) -> Any:
        options = getattr(self._settings, slot)
        settings = self._registry.get(slot, name).settings
        given = options if options.name == name else settings.model_validate({})
        made = make_component(self._registry, slot, given)
        ask, reader = _ASKED[slot]
        with blaming(self._registry, slot, given, "asked for a parser"):
            parser = ask(made)
        self._registry.refuse_misfit(slot, name, parser, f"{reader.__module__}:{reader.__name__}")
        return made

    def _shown_tools(self) -> str | None:
        texts = [self._rendered(each) for each in _CONVERSATIONS]
        found = (name for text in texts for name, mark in _MARKS.items() if re.search(mark, text))
        return next(found, None)

    def _shown_thoughts(self) -> str | None:
        prompt = self._rendered(_THOUGHTS[:1], add_generation_prompt=True)
        answer = self._rendered(_THOUGHTS)
        if prompt.endswith("<|start|>assistant"):
            return "gpt_oss"
        begins = prompt.rstrip().endswith("<think>")
        return "qwen3" if begins or re.search(r"<think>\s*hypothesis", answer) else None

    def _rendered(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return a conversation as the chat template writes it; nothing if it has none."""
        if self._tokenizer is None:
            return ""
        try:
            return str(self._tokenizer.apply_chat_template(conversation, tokenize=False, **options))
        except PagedCoreError:  # it has no template, or one that does not know of this
            return ""
