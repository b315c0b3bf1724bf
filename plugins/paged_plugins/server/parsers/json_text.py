"""JSON whose text grows: strict, and no further than the end of the value."""

from __future__ import annotations

import re

_SPACE = " \t\n\r"
_WORD = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_WORD_LETTERS = frozenset("-+.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_MOST_DEEP = 200
_VALUE, _FIRST, _KEY, _FIRST_KEY, _COLON, _NEXT, _STRING, _ESCAPE, _HEX, _WORDS, _DONE = range(11)


class JsonText:
    """Follows one value; white space before it belongs to it.

    Attributes:
        num_sure: of the characters taken, those that are the beginning of valid JSON for certain:
            the others are a number or a word that may still prove to be none.
    """

    def __init__(self) -> None:
        self._state = _VALUE
        self._open: list[str] = []
        self._is_key = False
        self._word = ""
        self._hex = 0
        self._taken = 0
        self.num_sure = 0

    @property
    def done(self) -> bool:
        """Return whether the value is whole."""
        return self._state == _DONE

    def take(self, text: str, start: int) -> int:
        """Take what belongs to the value from ``start`` on; return where it ends.

        Raises:
            ValueError: it is no JSON; ``num_sure`` characters were.
        """
        place = start
        while place < len(text) and self._state != _DONE:
            letter = text[place]
            if self._state == _WORDS and letter not in _WORD_LETTERS:
                self._end_word()  # the letter is the container's
                continue
            self._step(letter)
            place += 1
            self._taken += 1
            if self._state != _WORDS:
                self.num_sure = self._taken
        return place

    def _step(self, letter: str) -> None:
        state = self._state
        if state == _STRING:
            if letter == "\\":
                self._state = _ESCAPE
            elif letter == '"':
                self._state = _COLON if self._is_key else self._after_value()
            elif letter < " ":
                raise ValueError("a control character in a string")
        elif state == _ESCAPE:
            if letter == "u":
                self._state, self._hex = _HEX, 4
            elif letter in '"\\/bfnrt':
                self._state = _STRING
            else:
                raise ValueError("an unknown escape")
        elif state == _HEX:
            if letter not in "0123456789abcdefABCDEF":
                raise ValueError("an escape of other than four digits")
            self._hex -= 1
            self._state = _STRING if not self._hex else _HEX
        elif state == _WORDS:
            self._word += letter
        elif letter not in _SPACE:
            self._structure(letter)

    def _structure(self, letter: str) -> None:
        state = self._state
        closes = letter in "]}" and bool(self._open) and self._open[-1] == "[{"["]}".index(letter)]
        if state in (_FIRST, _FIRST_KEY, _NEXT) and closes:
            self._open.pop()
            self._state = self._after_value()
        elif state == _NEXT and letter == ",":
            self._state = _KEY if self._open[-1] == "{" else _VALUE
        elif state == _COLON and letter == ":":
            self._state = _VALUE
        elif state in (_KEY, _FIRST_KEY) and letter == '"':
            self._state, self._is_key = _STRING, True
        elif state in (_VALUE, _FIRST):
            self._begin(letter)
        else:
            raise ValueError(f"{letter!r} where it may not be")

    def _begin(self, letter: str) -> None:
        if letter == '"':
            self._state, self._is_key = _STRING, False
        elif letter in "[{":
            self._open.append(letter)
            if len(self._open) > _MOST_DEEP:
                raise ValueError("too deep")
            self._state = _FIRST_KEY if letter == "{" else _FIRST
        elif letter in _WORD_LETTERS:
            self._state, self._word = _WORDS, letter
        else:
            raise ValueError(f"{letter!r} where a value is to be")

    def _end_word(self) -> None:
        if not _WORD.fullmatch(self._word):
            raise ValueError(f"{self._word!r} is no value")
        self.num_sure = self._taken
        self._state = self._after_value()

    def _after_value(self) -> int:
        return _NEXT if self._open else _DONE


def held_back(text: str, mark: str) -> int:
    """Return how many letters at the end of a text may be the beginning of a mark."""
    for count in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-count:]):
            return count
    return 0
