"""Calls between marks: how all formats find them, whatever is between the marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from paged_plugins.server.parsers.json_text import held_back, parts
from paged_plugins.server.parsers.tool_parser import Piece, Text, ToolParser

_SPACE = re.compile(r"[ \t\n\r]*")
_LONGEST_HEAD = 512
"""Characters before the arguments of a call at most."""


class Reader(Protocol):
    """Reads one call as its text grows."""

    left: str
    """Once it has raised after it has begun: what of its text was not passed on."""

    @property
    def has_begun(self) -> bool:
        """Return whether the call was passed on: what follows of it cannot be text again."""

    @property
    def done(self) -> bool:
        """Return whether the call is whole."""

    def take(self, text: str, start: int, pieces: list[Piece], /) -> int:
        """Take what belongs to the call from ``start`` on, add to ``pieces``; return where it ends.

        What may be the beginning of a mark can be left untaken: it comes again, with more.

        Raises:
            ValueError: it is no call, or none any more.
        """

    def end(self, pieces: list[Piece], /) -> None:
        """Add what was taken and not passed on of a call that has begun: the answer ends in it."""


def head_of(head: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    """Return the head of a call; ``None``: it is not whole.

    Raises:
        ValueError: it would be too long.
    """
    found = head.match(text, start, start + _LONGEST_HEAD)
    if found is None and len(text) - start >= _LONGEST_HEAD:
        raise ValueError("no name of a function")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Texts around calls. White space may stand anywhere between them."""

    begins: tuple[str, ...] = ()
    """Each begins calls, wherever it is; none: calls begin where the answer does."""
    optional: tuple[str, ...] = ()
    """May follow, each once, in this order."""
    at_start: bool = False
    """Calls may also begin where the answer does."""
    around: tuple[tuple[str, str], ...] = (*(("```json", "```"), ("```", "```"), ("[", "]")),)
    """May stand around calls, one within the other: pairs."""
    between: str = ""
    """Letters after which another call follows; within brackets a comma is one."""
    ends: tuple[str, ...] = ()
    """May follow calls."""


class MarkedCallParser(ToolParser):
    """Reads calls that follow each other.

    Args:
        read: makes a reader of a call that comes after one of the marks ``begins`` (empty: none)
            and begins with a letter.
    """

    def __init__(self, marks: Marks, read: Callable[[str, str], Reader]) -> None:
        self._marks, self._read = marks, read
        self._begin = re.compile("|".join(map(re.escape, marks.begins))) if marks.begins else None
        self._mark = ""
        """The one of ``begins`` that came last."""
        self._taken: list[str] = []
        """Text that turns out to be no part of a call if none follows."""
        self._held = ""
        """Text behind it, of which nothing is known yet: part of a mark."""
        self._to_come = self._marks.optional
        """Marks that may come before the next call."""
        self._open: list[str] = []
        """Marks that close what is around calls."""
        self._reader: Reader | None = None
        self._has_calls = self._has_calls_here = False
        """True once a call was read, with nothing behind it; True once one was since the mark."""
        self._state: Callable[[list[Piece]], bool] = (
            self._in_text if marks.begins and not marks.at_start else self._before_call
        )

    def feed(self, text: str, /) -> Sequence[Piece]:
        found: list[Piece] = []
        for part in parts(text):
            self._held += part
            while self._state(found):
                pass
        return found

    def end(self) -> Sequence[Piece]:
        found: list[Piece] = []
        if self._state == self._in_call and self._reader is not None:
            self._reader.end(found)
            if self._reader.has_begun:
                self._has_calls = True
                self._taken.clear()
        held, self._held = "".join((*self._taken, self._held)), ""
        self._taken.clear()
        if held.strip() or (held and not self._has_calls):
            found.append(Text(held))
        return found

    # ------------------------------------------------------------------ where it is

    def _in_text(self, found: list[Piece]) -> bool:
        """Read text without calls; a call may follow where marks begin them."""
        if self._begin is not None and (mark := self._begin.search(self._held)):
            self._pass_on(self._held[: mark.start()], found)
            self._held = self._held[mark.end() :]
            self._mark = mark[0]
            self._taken = [mark[0]]
            self._start(self._before_call)
            return True
        sure = len(self._held) - held_back(self._held, *self._marks.begins)
        before, self._held = self._held[:sure], self._held[sure:]
        if self._has_calls and not before.strip():
            self._taken.append(before)  # dropped if another call follows, or nothing
        else:
            self._pass_on(before, found)
        return False

    def _pass_on(self, text: str, found: list[Piece]) -> None:
        """Pass on text, and the white space before it; after a call, white space alone is none."""
        text = "".join((*self._taken, text))
        self._taken.clear()
        if text and not (self._has_calls and not text.strip()):
            found.append(Text(text))
            self._has_calls = False

    def _before_call(self, found: list[Piece]) -> bool:
        """Read the marks before a call, or before the first of several."""
        self._skip_space()
        while self._to_come:
            mark = self._to_come[0]
            if mark.startswith(self._held) and mark != self._held:
                return False
            if self._held.startswith(mark):
                self._skip(len(mark))
                self._skip_space()
            self._to_come = self._to_come[1:]
        for opening, closing in self._marks.around if not self._has_calls_here else ():
            if closing in self._open:
                continue
            if self._held.startswith(opening):
                self._open.append(closing)
                self._skip(len(opening))
                return True
            if opening.startswith(self._held):
                return False
        if not self._held:
            return False
        self._reader = self._read(self._mark, self._held[0])
        self._state = self._in_call
        return True

    def _in_call(self, found: list[Piece]) -> bool:
        reader = self._reader
        assert reader is not None
        try:
            end = reader.take(self._held, 0, found)
        except ValueError:
            if not reader.has_begun:
                return self._is_no_call(found)
            self._taken.clear()
            self._held = reader.left  # it is cut where it stopped to be one
            self._start(self._in_text)
            return True
        self._skip(end)
        if reader.has_begun:
            self._taken.clear()
        if not reader.done:
            return False
        self._taken.clear()
        self._has_calls = self._has_calls_here = True
        self._state = self._after_call
        return True

    def _after_call(self, found: list[Piece]) -> bool:
        """Read what may stand between calls, and behind them."""
        self._skip_space()
        separators = self._marks.between + ("," if "]" in self._open else "")
        if self._held and self._held[0] in separators:
            self._taken.clear()
            self._held = self._held[1:]
            self._state = self._before_call
            return True
        for mark in (*self._open, *self._marks.ends):
            if self._held.startswith(mark):
                self._taken.clear()
                self._held = self._held[len(mark) :]
                if mark in self._open:
                    self._open.remove(mark)
                return True
            if mark.startswith(self._held):
                return False
        if not self._held:
            return False
        self._held = "".join((*self._taken, self._held))
        self._taken.clear()
        self._start(self._in_text)
        return True

    # ------------------------------------------------------------------ from one to another

    def _skip(self, size: int) -> None:
        self._taken.append(self._held[:size])
        self._held = self._held[size:]

    def _skip_space(self) -> None:
        space = _SPACE.match(self._held)
        assert space is not None
        if space[0]:
            self._skip(space.end())

    def _start(self, state: Callable[[list[Piece]], bool]) -> None:
        self._state = state
        self._has_calls_here = False
        self._to_come = self._marks.optional
        self._open.clear()

    def _is_no_call(self, found: list[Piece]) -> bool:
        """Pass on what looked like a call as text."""
        held = "".join((*self._taken, self._held))
        self._taken.clear()
        if not self._mark or self._has_calls_here:
            self._held = held
            self._start(self._in_text)
            return True
        found.append(Text(self._mark))
        self._held = held[len(self._mark) :]
        self._has_calls = False
        self._start(self._in_text)
        return True
