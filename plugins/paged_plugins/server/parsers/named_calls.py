"""Calls as the name of a function between marks, and its arguments behind it as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from paged_plugins.server.parsers.calls import CallReader
from paged_plugins.server.parsers.marked_calls import Marks, Reader, head_of
from paged_plugins.server.parsers.tool_formats import MarkedFormat, Written
from paged_plugins.server.parsers.tool_parser import Functions, Piece


class NamedReader(CallReader):
    """Reads one call.

    Args:
        head: all that is before the arguments; one of its groups is the name.
    """

    def __init__(self, head: re.Pattern[str]) -> None:
        super().__init__()
        self._head = head

    def take(self, text: str, start: int, pieces: list[Piece], /) -> int:
        if not self.is_bare:
            found = head_of(self._head, text, start)
            if found is None:
                return start
            self.read_arguments(next(filter(None, found.groups())))
            start = found.end()
        return super().take(text, start, pieces)


class NamedFormat(MarkedFormat):
    """A subclass says how a call looks before its arguments and behind them."""

    head: ClassVar[re.Pattern[str]]

    def reader(self, functions: Functions, mark: str, letter: str, /) -> Reader:
        return NamedReader(self.head)


class MistralFormat(MarkedFormat):
    """``[TOOL_CALLS][{"name": ..., "arguments": ...}, ...]``, and in later versions
    ``[TOOL_CALLS]f[CALL_ID]...[ARGS]{...}``, with or without an id."""

    layout = Marks(begins=("[TOOL_CALLS]",))
    inner_marks = ("[CALL_ID]", "[ARGS]")
    written = Written('{"name": "{}", "arguments": ', "}", ", ", "[TOOL_CALLS][", "]")
    _head = re.compile(r"([^\s\[\]{}\"]+)\s*(?:\[CALL_ID\][^\[\]{}]*)?(?:\[ARGS\]|(?=\{))")

    def reader(self, functions: Functions, mark: str, letter: str, /) -> Reader:
        return CallReader() if letter == "{" else NamedReader(self._head)

    def written_with(self, tokens: Mapping[str, int], /) -> Written:
        return Written("[TOOL_CALLS]{}[ARGS]", "") if "[ARGS]" in tokens else self.written


class KimiK2Format(NamedFormat):
    """``<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>``, in
    a section: Kimi K2."""

    layout = Marks(
        begins=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        optional=("<|tool_call_begin|>",),
        around=(),
        ends=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
    )
    inner_marks = ("<|tool_call_argument_begin|>",)
    head = re.compile(
        r"(?:functions\.)?([^\s<>{}\"]+?)(?::[0-9]+)?\s*<\|tool_call_argument_begin\|>"
    )
    written = Written(
        "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        begin="<|tool_calls_section_begin|>",
        end="<|tool_calls_section_end|>",
    )


def _deepseek(words: str) -> str:
    """Return a mark of DeepSeek."""
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


_CALLS, _CALL, _SEP = map(_deepseek, ("tool calls begin", "tool call begin", "tool sep"))
_CALL_END, _CALLS_END = map(_deepseek, ("tool call end", "tool calls end"))


class DeepseekV3Format(NamedFormat):
    """Calls that have a type, and their arguments in a fence: DeepSeek V3 and R1.

    Those of V3.1 are read, too.
    """

    layout = Marks(
        begins=(_CALLS, _CALL),
        optional=(_CALL,),
        around=(),
        ends=(f"```{_CALL_END}", f"```{_CALLS_END}", _CALL_END, _CALLS_END),
    )
    inner_marks = (_SEP,)
    head = re.compile(
        rf"function{_SEP}([^\s<>{{}}`]+)\s*```(?:json)?\s"
        rf"|([^\s<>{{}}`]+){_SEP}(?=\s*[{{n\"])"
    )
    written = Written(
        f"{_CALL}function{_SEP}{{}}\n```json\n", f"\n```{_CALL_END}", "\n", _CALLS, _CALLS_END
    )


class DeepseekV31Format(DeepseekV3Format):
    """``<\uff5ctool\u2581call\u2581begin\uff5c>f<\uff5ctool\u2581sep\uff5c>{...}``: V3.1."""

    written = Written(f"{_CALL}{{}}{_SEP}", _CALL_END, "", _CALLS, _CALLS_END)
