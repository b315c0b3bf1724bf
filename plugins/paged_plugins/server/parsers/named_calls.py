"""Calls as the name of a function between marks, and its arguments behind it as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from paged_plugins.server.parsers.call_grammar import calls_grammar, json_call, literals
from paged_plugins.server.parsers.calls import CallReader
from paged_plugins.server.parsers.marked_calls import Marks, Reader, head_of
from paged_plugins.server.parsers.tool_formats import MarkedFormat
from paged_plugins.server.parsers.tool_parser import Function, Piece


class NamedReader:
    """Reads one call.

    Args:
        head: all that is before the arguments; one of its groups is the name.
    """

    def __init__(self, head: re.Pattern[str]) -> None:
        self._head = head
        self._arguments: CallReader | None = None
        self.left = ""

    @property
    def has_begun(self) -> bool:
        return self._arguments is not None and self._arguments.has_begun

    @property
    def done(self) -> bool:
        return self._arguments is not None and self._arguments.done

    def take(self, text: str, start: int, pieces: list[Piece], /) -> int:
        if self._arguments is None:
            found = head_of(self._head, text, start)
            if found is None:
                return start
            self._arguments = CallReader(name=next(filter(None, found.groups())))
            start = found.end()
        try:
            return self._arguments.take(text, start, pieces)
        except ValueError:
            self.left = self._arguments.left
            raise

    def end(self, pieces: list[Piece], /) -> None:
        if self._arguments is not None:
            self._arguments.end(pieces)


class NamedFormat(MarkedFormat):
    """A subclass says how a call looks before its arguments and behind them."""

    head: ClassVar[re.Pattern[str]]
    written: ClassVar[tuple[str, str]]
    """Text before the arguments, with the name as ``{}``, and behind them, in forced calls."""
    around: ClassVar[tuple[str, str]] = ("", "")
    """Text around all forced calls."""
    between: ClassVar[str] = ""

    def reader(
        self, functions: Mapping[str, Mapping[str, Any]], mark: str, letter: str, /
    ) -> Reader:
        return NamedReader(self.head)

    def grammar(
        self, functions: Sequence[Function], /, *, parallel: bool, tokens: Mapping[str, int]
    ) -> str:
        text = literals(tokens)
        before, behind = self.written

        def write(name: str, function: Function) -> list[str]:
            return json_call(
                name, function, text(before.replace("{}", function.name)), text(behind)
            )

        begin, end = self.around
        return calls_grammar(
            functions,
            write,
            parallel=parallel,
            between=text(self.between),
            around=(text(begin), text(end)),
        )


class MistralFormat(MarkedFormat):
    """``[TOOL_CALLS][{"name": ..., "arguments": ...}, ...]``, and in later versions
    ``[TOOL_CALLS]f[CALL_ID]...[ARGS]{...}``, with or without an id."""

    layout = Marks(begins=("[TOOL_CALLS]",))
    inner_marks = ("[CALL_ID]", "[ARGS]")
    _head = re.compile(r"([^\s\[\]{}\"]+)\s*(?:\[CALL_ID\][^\[\]{}]*)?(?:\[ARGS\]|(?=\{))")

    def reader(
        self, functions: Mapping[str, Mapping[str, Any]], mark: str, letter: str, /
    ) -> Reader:
        return CallReader() if letter == "{" else NamedReader(self._head)

    def grammar(
        self, functions: Sequence[Function], /, *, parallel: bool, tokens: Mapping[str, int]
    ) -> str:
        text = literals(tokens)
        if "[ARGS]" in tokens:

            def write_named(name: str, function: Function) -> list[str]:
                return json_call(name, function, text(f"[TOOL_CALLS]{function.name}[ARGS]"), "")

            return calls_grammar(functions, write_named, parallel=parallel)

        def write(name: str, function: Function) -> list[str]:
            head = f'{{"name": {json.dumps(function.name)}, "arguments": '
            return json_call(name, function, text(head), text("}"))

        around = text("[TOOL_CALLS]["), text("]")
        return calls_grammar(functions, write, parallel=parallel, between=text(", "), around=around)


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
    written = (
        "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    )
    around = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")


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
    written = (f"{_CALL}function{_SEP}{{}}\n```json\n", f"\n```{_CALL_END}")
    around = (_CALLS, _CALLS_END)
    between = "\n"


class DeepseekV31Format(DeepseekV3Format):
    """``<\uff5ctool\u2581call\u2581begin\uff5c>f<\uff5ctool\u2581sep\uff5c>{...}``: V3.1."""

    written = (f"{_CALL}{{}}{_SEP}", _CALL_END)
    between = ""
