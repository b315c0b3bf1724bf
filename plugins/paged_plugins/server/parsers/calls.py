"""A call as a JSON object, ``{"name": ..., "arguments": {...}}``, read as its text grows."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from paged_plugins.server.parsers.json_text import SPACE, JsonText
from paged_plugins.server.parsers.tool_parser import Arguments, CallBegins, Piece, Text

_ARGUMENTS = ("arguments", "parameters")
_NESTED = "function"
"""Key of an object within a call that has its name and arguments."""
_OTHERS = ("id", "type", "index")
"""Keys that say nothing that is needed."""
_OPEN, _KEY_OR_CLOSE, _KEY, _COLON, _VALUE, _NEXT, _DONE = range(7)


class CallReader:
    """Reads one call; its arguments are passed on as soon as its name is known.

    Arguments may be an object, the text of one, or ``null`` for none.

    Args:
        names: that it may have; ``None``: any.
        name: of the function whose arguments are all that is read.
    """

    def __init__(self, names: Collection[str] | None = None, name: str | None = None) -> None:
        self._names = names
        self._state = _OPEN
        self._value = JsonText()
        self._text: list[str] = []
        """Key or value that is being read; of arguments, what was not passed on."""
        self._opens = ""
        """First letter of the value."""
        self._key = ""
        self._keys: set[str] = set()
        self._depth = 0
        """Objects that are open."""
        self._name: str | None = None
        self.is_bare = False
        """True if the arguments are all that is read."""
        self._waiting = ""
        """Arguments that came before the name."""
        self._num_passed = 0
        self.has_begun = False
        """True once the call was passed on."""
        self.left = ""
        """Once it has raised: what of its text was not passed on."""
        if name is not None:
            self.read_arguments(name)

    def read_arguments(self, name: str) -> None:
        """Read the arguments of a function, and nothing else."""
        self._name, self._key, self.is_bare = name, _ARGUMENTS[0], True
        self._begin(_VALUE)

    @property
    def done(self) -> bool:
        """Return whether the call is whole."""
        return self._state == _DONE

    def take(self, text: str, start: int, pieces: list[Piece], /) -> int:
        """Take what belongs to the call from ``start`` on, add to ``pieces``; return where it ends.

        Raises:
            ValueError: it is no call; of one that has begun, what is sure was passed on.
        """
        place = start
        while place < len(text) and self._state != _DONE:
            if self._state in (_KEY, _VALUE):
                place = self._take_value(text, place, pieces)
            elif text[place] in SPACE:
                place += 1
            else:
                self.left = text[place:]
                place += self._punctuation(text[place], pieces)
        return place

    def end(self, pieces: list[Piece]) -> None:
        """Add what was taken and not passed on of a call that has begun: the answer ends in it."""
        if self.is_bare and self._opens in ("n", "N"):
            with suppress(ValueError):
                self.take("\n", 0, pieces)  # the word ends
        held = "".join(self._text)
        if self.has_begun and held.strip():
            kind = Arguments if self._state == _VALUE and self._key in _ARGUMENTS else Text
            pieces.append(kind(held))

    def _punctuation(self, letter: str, pieces: list[Piece]) -> int:
        """Take one letter between keys and values; return 0 if a key or value begins with it."""
        if self._state == _OPEN and letter == "{":
            self._state, self._depth = _KEY_OR_CLOSE, self._depth + 1
        elif self._state in (_KEY_OR_CLOSE, _NEXT) and letter == "}":
            self._close(pieces)
        elif self._state == _NEXT and letter == ",":
            self._begin(_KEY)
        elif self._state == _KEY_OR_CLOSE and letter == '"':
            self._begin(_KEY)
            return 0
        elif self._state == _COLON and letter == ":":
            if self._key == _NESTED:
                self._state = _OPEN
            else:
                self._begin(_VALUE)
        else:
            raise ValueError(f"{letter!r} where it may not be")
        return 1

    def _begin(self, state: int) -> None:
        self._state, self._value, self._opens, self._num_passed = state, JsonText(), "", 0
        self._text.clear()

    def _take_value(self, text: str, start: int, pieces: list[Piece]) -> int:
        end, error = len(text), None
        try:
            end = self._value.take(text, start)
        except ValueError as found:
            error = found
        more = text[start:end]
        self._opens = self._opens or more.lstrip(SPACE)[:1]
        self._text.append(more)
        if self._state == _VALUE and self._key in _ARGUMENTS:
            if self._opens == "{" and self._name is not None:
                self._pass_on(pieces)
            elif self._opens and self._opens not in '{"nN':
                error = error or ValueError("arguments are an object")
        if error is not None:
            self.left = "".join((*self._text, text[end:]))
            raise error
        if self._value.done:
            whole = "".join(self._text)
            self._text.clear()
            self.left = whole + text[end:]
            self._end_key() if self._state == _KEY else self._end_value(whole, pieces)
        return end

    def _end_key(self) -> None:
        key = json.loads(self._value.written())
        if key not in ("name", _NESTED, *_ARGUMENTS, *_OTHERS) or not isinstance(key, str):
            raise ValueError(f"a call has no {key!r}")
        kind = "arguments" if key in _ARGUMENTS else key
        if kind in self._keys:
            raise ValueError(f"{key!r} is there twice")
        self._keys.add(kind)
        self._key, self._state = key, _COLON

    def _end_value(self, whole: str, pieces: list[Piece]) -> None:
        if self._key in _ARGUMENTS and self._opens != "{":
            whole = _object(json.loads(self._value.written()))
        if self._key in _ARGUMENTS and self._name is None:
            self._waiting = whole.lstrip(SPACE)
        elif self._key in _ARGUMENTS and whole:
            self._emit(whole, pieces)
        if self._key == "name":
            name = json.loads(self._value.written())
            if not isinstance(name, str) or not name:
                raise ValueError("the name of a function is a text")
            if self._names is not None and name not in self._names:
                raise ValueError(f"no function is called {name!r}")
            self._name = name
            if self._waiting:
                self._emit(self._waiting, pieces)
                self._waiting = ""
        self._state = _DONE if self.is_bare else _NEXT

    def _pass_on(self, pieces: list[Piece]) -> None:
        """Pass on what is sure of the arguments."""
        if self._value.num_sure == self._num_passed:
            return  # within a word: how long it gets is not known
        held = "".join(self._text)
        more = held[: self._value.num_sure - self._num_passed]
        self._text[:] = [held[len(more) :]]
        self._num_passed += len(more)
        if more:
            self._emit(more if self.has_begun else more.lstrip(SPACE), pieces)

    def _emit(self, arguments: str, pieces: list[Piece]) -> None:
        if not self.has_begun:
            assert self._name is not None
            pieces.append(CallBegins(self._name))
            self.has_begun = True
        pieces.append(Arguments(arguments))

    def _close(self, pieces: list[Piece]) -> None:
        self._depth -= 1
        if self._depth:
            self._state = _NEXT
            return
        if self._name is None:
            raise ValueError("a call without the name of a function")
        if not self.has_begun:
            self._emit("{}", pieces)
        self._state = _DONE


def _object(value: Any) -> str:
    """Return the object that arguments other than an object stand for.

    Raises:
        ValueError: they stand for none.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return "{}"
    if not isinstance(value, str):
        raise ValueError("arguments are an object")
    inside = value.strip()
    if inside.startswith("```") and inside.endswith("```"):
        inside = inside[3:-3].removeprefix("json").strip()
    pieces: list[Piece] = []
    reader = CallReader(name="inside")
    if not inside.startswith("{") or reader.take(inside, 0, pieces) < len(inside):
        raise ValueError("arguments are an object")
    if not reader.done:
        raise ValueError("arguments that are cut short")
    return "".join(piece.text for piece in pieces if isinstance(piece, Arguments))
