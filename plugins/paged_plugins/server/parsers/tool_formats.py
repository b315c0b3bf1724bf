"""Calls written as JSON objects: after a mark, between two, or from the first letter on."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from paged_plugins.server.parsers.calls import CallReader
from paged_plugins.server.parsers.json_text import held_back
from paged_plugins.server.parsers.tool_parser import Function, Piece, Text, ToolFormat, ToolParser

_SPACE = " \t\n\r"
_MOST_CALLS = 16
"""In an answer that is forced to have calls."""
_WHITESPACE = r"\x20?"
"""Between parts of arguments that are forced: what models write in calls."""


class JsonCallParser(ToolParser):
    """Reads calls that follow each other.

    Args:
        begin: the mark before a call, or before the first of several; ``None``: they begin where
            the answer does.
        end: what follows a call.
        between: letters after which another call follows; empty: another mark comes first.
        opening, closing: around all calls.
        optional: a mark that may come before the first call.
        names: of the functions; ``None``: a call may have any.
    """

    def __init__(
        self,
        *,
        begin: str | None = None,
        end: str = "",
        between: str = "",
        opening: str = "",
        closing: str = "",
        optional: str = "",
        names: Collection[str] | None = None,
    ) -> None:
        self._begin, self._end, self._between = begin, end, between
        self._opening, self._closing = opening, closing
        self._first_marks = [mark for mark in (optional, opening) if mark]
        self._marks = self._first_marks
        """Marks that are still to come before the next call."""
        self._names = names
        self._held = ""
        """Text that was fed and not passed on, nor taken by a call that has begun."""
        self._place = 0
        """In it: where the call that is being read goes on."""
        self._reader = CallReader(names)
        self._has_calls = False
        self._state: Callable[[list[Piece]], bool] = (
            self._in_text if begin is not None else self._before_call
        )

    def feed(self, text: str, /) -> Sequence[Piece]:
        self._held += text
        found: list[Piece] = []
        while self._state(found):
            pass
        return found

    def end(self) -> Sequence[Piece]:
        held, self._held = self._held, ""
        is_lost = self._state == self._in_call and self._reader.has_begun
        if not held or is_lost or (self._has_calls and self._is_filling(held)):
            return []
        return [Text(held)]

    def _is_filling(self, held: str) -> bool:
        """Return whether the rest after a call is no text, but what may stand around calls."""
        bare = held.strip()
        return not bare or any(
            bool(mark) and mark.startswith(bare) for mark in (self._end, self._closing)
        )

    # ------------------------------------------------------------------ where it is

    def _in_text(self, found: list[Piece]) -> bool:
        """Read text without calls; a call may follow."""
        assert self._begin is not None
        before, mark, _ = self._held.partition(self._begin)
        if mark:
            if before and not (self._has_calls and not before.strip()):
                found.append(Text(before))
            self._held = self._held[len(before) :]
            self._place = len(mark)
            self._start(self._before_call)
            return True
        kept = held_back(self._held, self._begin)
        if self._has_calls and not self._held[: len(self._held) - kept].strip():
            return False  # white space after a call is dropped if another one follows, or nothing
        if shown := self._held[: len(self._held) - kept]:
            found.append(Text(shown))
            self._held = self._held[len(shown) :]
            self._has_calls = False
        return False

    def _in_plain_text(self, found: list[Piece]) -> bool:
        """Read text after which no call can follow."""
        if self._held:
            found.append(Text(self._held))
            self._held = ""
        return False

    def _before_call(self, found: list[Piece]) -> bool:
        """Read the marks before a call, or before the first of several."""
        while self._marks:
            mark, bare = self._marks[0], self._held[self._place :].lstrip()
            if bare.startswith(mark):
                self._place = len(self._held) - len(bare) + len(mark)
            elif mark.startswith(bare):
                return False
            elif mark == self._opening:
                return self._is_no_call(found)
            self._marks = self._marks[1:]
        bare = self._held[self._place :].lstrip()
        if not bare:
            return False
        if not bare.startswith("{"):
            return self._is_no_call(found)
        self._place = len(self._held) - len(bare)
        self._reader = CallReader(self._names)
        self._state = self._in_call
        return True

    def _in_call(self, found: list[Piece]) -> bool:
        try:
            end = self._reader.take(self._held, self._place, found)
        except ValueError:
            if not self._reader.has_begun:
                return self._is_no_call(found)
            self._held, self._place = self._reader.left, 0  # it is cut where it stopped to be one
            self._start(self._in_plain_text if self._begin is None else self._in_text)
            return True
        self._place = end
        if self._reader.has_begun:
            self._held, self._place = self._held[end:], 0
        if not self._reader.done:
            return False
        self._held, self._place = self._held[self._place :], 0
        self._has_calls = self._has_calls_here = True
        self._state = self._after_call
        return True

    def _after_call(self, found: list[Piece]) -> bool:
        bare = self._held.lstrip()
        for mark in filter(None, (self._end, self._closing)):
            if bare.startswith(mark):
                self._held = bare[len(mark) :]
                self._start(self._in_text if self._begin is not None else self._in_plain_text)
                return True
            if mark.startswith(bare):
                return False
        if not bare:
            return False
        if bare[0] in self._between:
            self._held = bare[1:]
            self._state = self._before_call
            return True
        self._start(self._in_text if self._begin is not None else self._in_plain_text)
        return True

    # ------------------------------------------------------------------ from one to another

    _has_calls_here = False
    """True once a call was read since the last mark."""

    def _start(self, state: Callable[[list[Piece]], bool]) -> None:
        self._state = state
        self._has_calls_here = False
        self._marks = self._first_marks

    def _is_no_call(self, found: list[Piece]) -> bool:
        """Pass on what looked like a call as text."""
        self._place = 0
        if self._begin is None or self._has_calls_here:
            self._start(self._in_plain_text if self._begin is None else self._in_text)
            return True
        found.append(Text(self._begin))
        self._held = self._held[len(self._begin) :]
        self._has_calls = False
        self._start(self._in_text)
        return True


class _JsonFormat(ToolFormat):
    def __init__(self, options: object, /) -> None:
        pass


class HermesFormat(_JsonFormat):
    """``<tool_call>{"name": ..., "arguments": ...}</tool_call>``: Hermes, Qwen and many others."""

    def parser(self, names: Collection[str], /) -> ToolParser:
        return JsonCallParser(begin="<tool_call>", end="</tool_call>")

    def grammar(self, functions: Sequence[Function], /, *, parallel: bool) -> str:
        begin, end = '<tool_call>\n{"name": ', "}\n</tool_call>"
        return calls_grammar(
            functions, parallel, begin=begin, arguments="arguments", end=end, between="\n"
        )


class Llama3JsonFormat(_JsonFormat):
    """``{"name": ..., "parameters": ...}``: Llama 3.1 and 3.2; further calls come after ``;``."""

    def parser(self, names: Collection[str], /) -> ToolParser:
        return JsonCallParser(between=";", optional="<|python_tag|>", names=names)

    def grammar(self, functions: Sequence[Function], /, *, parallel: bool) -> str:
        return calls_grammar(
            functions, parallel, begin='{"name": ', arguments="parameters", end="}", between="; "
        )


class MistralFormat(_JsonFormat):
    """``[TOOL_CALLS][{"name": ..., "arguments": ...}, ...]``: Mistral."""

    shows_special_tokens = True

    def parser(self, names: Collection[str], /) -> ToolParser:
        return JsonCallParser(begin="[TOOL_CALLS]", opening="[", between=",", closing="]")

    def grammar(self, functions: Sequence[Function], /, *, parallel: bool) -> str:
        return calls_grammar(
            functions,
            parallel,
            begin='{"name": ',
            arguments="arguments",
            end="}",
            between=", ",
            around=("[TOOL_CALLS][", "]"),
        )


def calls_grammar(
    functions: Sequence[Function],
    parallel: bool,
    *,
    begin: str,
    arguments: str,
    end: str,
    between: str,
    around: tuple[str, str] = ("", ""),
) -> str:
    """Return a grammar of calls, whose arguments each have the schema of their function."""
    rules = []
    for number, each in enumerate(functions):
        head = f'{begin}{json.dumps(each.name)}, "{arguments}": '
        rules.append(f"call_{number}: {literal(head)} arguments_{number} {literal(end)}")
        rules.append(f"arguments_{number}: %json {json.dumps(arguments_schema(each))}")
    return calls_rules(len(functions), parallel, between, around) + "\n".join(rules)


def calls_rules(count: int, parallel: bool, between: str, around: tuple[str, str]) -> str:
    """Return the rules of answers that consist of a call or of several."""
    more = f" ({literal(between)} call){{0,{_MOST_CALLS - 1}}}" if parallel else ""
    parts = [literal(around[0]), f"call{more}", literal(around[1])]
    choices = " | ".join(f"call_{number}" for number in range(count))
    return f"start: {' '.join(filter(None, parts))}\ncall: {choices}\n"


def literal(text: str) -> str:
    """Return text as a grammar writes it; nothing for none."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def arguments_schema(function: Function) -> dict[str, Any]:
    """Return the schema of arguments, an object in any case."""
    schema = {"type": "object", **function.parameters}
    schema["x-guidance"] = {"whitespace_pattern": _WHITESPACE}
    return schema
