"""A call as a JSON object, ``{"name": ..., "arguments": {...}}``, read as its text grows."""

from __future__ import annotations

import json
from collections.abc import Collection

from paged_plugins.server.parsers.json_text import JsonText
from paged_plugins.server.parsers.tool_parser import Arguments, CallBegins, Piece

_SPACE = " \t\n\r"
_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("id", "type")
"""Keys that say nothing that is needed."""
_OPEN, _KEY_OR_CLOSE, _KEY, _COLON, _VALUE, _NEXT, _DONE = range(7)


class CallReader:
    """Reads one call; its arguments are passed on as soon as its name is known.

    Args:
        names: that it may have; ``None``: any.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self._names = names
        self._state = _OPEN
        self._value = JsonText()
        self._text = ""
        """Text so far of the key or value that is being read."""
        self._key = ""
        self._keys: set[str] = set()
        self._name: str | None = None
        self._waiting = ""
        """Arguments that came before the name."""
        self._num_passed = 0
        self.has_begun = False
        """True once the call was passed on."""
        self.left = ""
        """Once it has raised: what of its text was not passed on."""

    @property
    def done(self) -> bool:
        """Return whether the call is whole."""
        return self._state == _DONE

    def take(self, text: str, start: int, pieces: list[Piece]) -> int:
        """Take what belongs to the call from ``start`` on, add to ``pieces``; return where it ends.

        Raises:
            ValueError: it is no call; of one that has begun, what is sure was passed on.
        """
        place = start
        while place < len(text) and self._state != _DONE:
            if self._state in (_KEY, _VALUE):
                place = self._take_value(text, place, pieces)
            elif text[place] in _SPACE:
                place += 1
            else:
                self.left = text[place:]
                place += self._punctuation(text[place], pieces)
        return place

    def _punctuation(self, letter: str, pieces: list[Piece]) -> int:
        """Take one letter between keys and values; return 0 if a key begins with it."""
        if self._state == _OPEN and letter == "{":
            self._state = _KEY_OR_CLOSE
        elif self._state in (_KEY_OR_CLOSE, _NEXT) and letter == "}":
            self._close(pieces)
        elif self._state == _NEXT and letter == ",":
            self._begin(_KEY)
        elif self._state == _KEY_OR_CLOSE and letter == '"':
            self._begin(_KEY)
            return 0
        elif self._state == _COLON and letter == ":":
            self._begin(_VALUE)
        else:
            raise ValueError(f"{letter!r} where it may not be")
        return 1

    def _begin(self, state: int) -> None:
        self._state, self._value, self._text, self._num_passed = state, JsonText(), "", 0

    def _take_value(self, text: str, start: int, pieces: list[Piece]) -> int:
        is_arguments = self._state == _VALUE and self._key in _ARGUMENTS
        before, end, error = self._text, len(text), None
        try:
            end = self._value.take(text, start)
        except ValueError as found:
            error = found
        self._text += text[start:end]
        if is_arguments:
            self._pass_on(pieces)
        if error is not None:
            self.left = (before + text[start:])[self._num_passed :]
            raise error
        if self._value.done:
            self._end_value(pieces)
        return end

    def _end_value(self, pieces: list[Piece]) -> None:
        if self._state == _KEY:
            self._key = json.loads(self._text)
            if self._key not in ("name", *_ARGUMENTS, *_OTHERS) or not isinstance(self._key, str):
                raise ValueError(f"a call has no {self._key!r}")
            kind = "arguments" if self._key in _ARGUMENTS else self._key
            if kind in self._keys:
                raise ValueError(f"{self._key!r} is there twice")
            self._keys.add(kind)
            self._state = _COLON
            return
        if self._key == "name":
            name = json.loads(self._text)
            if not isinstance(name, str) or not name:
                raise ValueError("the name of a function is a text")
            if self._names is not None and name not in self._names:
                raise ValueError(f"no function is called {name!r}")
            self._name = name
            if self._waiting:
                self._emit(self._waiting, pieces)
                self._waiting = ""
        self._state = _NEXT

    def _pass_on(self, pieces: list[Piece]) -> None:
        """Pass on what is sure of the arguments."""
        if not self._text.lstrip().startswith("{"):
            if self._text.strip():
                raise ValueError("arguments are an object")
            return
        sure = min(self._value.num_sure, len(self._text))
        if sure <= self._num_passed:
            return
        more = self._text[self._num_passed : sure]
        if not self._num_passed:
            more = more.lstrip()
        self._num_passed = sure
        if self._name is None:
            self._waiting += more
        else:
            self._emit(more, pieces)

    def _emit(self, arguments: str, pieces: list[Piece]) -> None:
        if not self.has_begun:
            assert self._name is not None
            pieces.append(CallBegins(self._name))
            self.has_begun = True
        pieces.append(Arguments(arguments))

    def _close(self, pieces: list[Piece]) -> None:
        if self._name is None:
            raise ValueError("a call without the name of a function")
        if not self.has_begun:
            self._emit("{}", pieces)
        self._state = _DONE
