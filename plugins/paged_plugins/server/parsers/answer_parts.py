"""An answer taken apart as it grows: thoughts, then calls and text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paged_plugins.server.parsers.json_text import held_back
from paged_plugins.server.parsers.reasoning_parser import ReasoningParser
from paged_plugins.server.parsers.tool_parser import CallBegins, Piece, Text, ToolParser


class AnswerParts:
    """Takes one answer apart.

    A call within thoughts that no answer follows is a call: the model has not closed its thoughts.
    So they are held back from a mark of a call on, until it is known what follows.

    Args:
        reasoning: ``None``: nothing is thought.
        tools: ``None``: nothing is called.
        begins: marks of calls.
    """

    def __init__(
        self, reasoning: ReasoningParser | None, tools: ToolParser | None, begins: Sequence[str]
    ) -> None:
        self._reasoning, self._tools = reasoning, tools
        self._begins = begins if reasoning is not None and tools is not None else ()
        self._mark = re.compile("|".join(map(re.escape, begins)))
        self._tail = ""
        """End of the thoughts, which may be a part of a mark."""
        self._call: list[str] = []
        """Thoughts from a mark on."""

    def take(self, text: str, *, has_ended: bool) -> tuple[str, list[Piece]]:
        """Return what was thought, and the pieces of the answer."""
        thoughts, answer = self._split(text, has_ended=has_ended)
        if self._begins:
            thoughts = self._without_call(thoughts, is_over=bool(answer))
        if self._tools is None:
            return thoughts, [Text(answer)] if answer else []
        pieces = list(self._tools.feed(answer))
        if has_ended:
            thoughts += self._tail
            pieces += self._tools.feed(held := "".join(self._call))
            pieces += self._tools.end()
            if held and not any(isinstance(piece, CallBegins) for piece in pieces):
                return thoughts + held, []
        return thoughts, pieces

    def _split(self, text: str, *, has_ended: bool) -> tuple[str, str]:
        """Return what is thought, and what is not."""
        if self._reasoning is None:
            return "", text
        found = [*self._reasoning.feed(text), *(self._reasoning.end() if has_ended else ())]
        return (
            "".join(each.text for each in found if each.is_reasoning),
            "".join(each.text for each in found if not each.is_reasoning),
        )

    def _without_call(self, thoughts: str, *, is_over: bool) -> str:
        """Return what can be shown of thoughts; where they are over, all that was held back."""
        thoughts, self._tail = self._tail + thoughts, ""
        if is_over:
            self._begins = ()
            held = "".join(self._call)
            self._call.clear()
            return held + thoughts
        if self._call:
            self._call.append(thoughts)
            return ""
        if mark := self._mark.search(thoughts):
            self._call.append(thoughts[mark.start() :])
            return thoughts[: mark.start()]
        sure = len(thoughts) - held_back(thoughts, *self._begins)
        self._tail = thoughts[sure:]
        return thoughts[:sure]
