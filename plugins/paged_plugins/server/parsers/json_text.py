"""JSON whose text grows, as models write it: followed to the end of the value, and mended.

Read beside JSON, and made JSON of: control characters and wrong escapes in strings, single quotes,
literals of Python and JavaScript, names without quotes, tuples, commas too many or too few, halves
of surrogate pairs (U+FFFD). A number that a double cannot hold becomes the text of its digits:
clients would read infinity, or refuse it. What is JSON stays as it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isfinite

MAX_DEPTH = 64
"""Most arrays and objects in each other, where any JSON may be given."""
SPACE = " \t\n\r"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD_LETTERS = frozenset("-+._0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ$")
_PLAIN = re.compile(r"[^\"'\\\x00-\x1f\ud800-\udfff]+")
"""Letters that a string has as they are."""
_LITERALS = {"true": "true", "false": "false"} | dict.fromkeys(
    ("null", "none", "undefined", "nan", "inf", "infinity"), "null"
)
_CLOSINGS = {"{": "}", "[": "]", "(": ")"}
_PART = 256
_NO_CHARACTER = "\\ufffd"
_OBJECT, _VALUE, _FIRST, _KEY, _FIRST_KEY, _COLON, _NEXT = range(7)
_STRING, _ESCAPE, _HEX, _WORDS, _DONE = range(7, 12)


class JsonText:
    """Follows one value; white space before it belongs to it.

    Args:
        is_object: any other value is an error.

    Attributes:
        num_taken: characters taken.
        num_sure: of these, those that belong to the value for certain: the others are a number or
            a word.
    """

    def __init__(self, *, is_object: bool = False) -> None:
        self._state = _OBJECT if is_object else _VALUE
        self._open: list[str] = []
        """Letters that close what is open."""
        self._made: list[str] = []
        """JSON that was not asked for yet."""
        self._kept: list[str] = []
        """JSON that follows if a value does: a comma, a key."""
        self._is_key = False
        self._quote = ""
        self._word: list[str] = []
        self._hex = ""
        self._half = ""
        """Digits of the first half of a surrogate pair."""
        self.num_taken = self.num_sure = 0

    @property
    def done(self) -> bool:
        """Return whether the value is whole."""
        return self._state == _DONE

    def take(self, text: str, start: int) -> int:
        """Take what belongs to the value from ``start`` on; return where it ends.

        Raises:
            ValueError: it is none; ``num_sure`` characters were the beginning of one.
        """
        place = start
        while place < len(text) and self._state != _DONE:
            if self._state == _STRING and not self._half and (run := _PLAIN.match(text, place)):
                self._put(run[0])
                end = run.end()
            else:
                end = place + self._step(text[place])
            self.num_taken += end - place
            place = end
            if self._state != _WORDS:
                self.num_sure = self.num_taken
        return place

    def written(self) -> str:
        """Return the JSON that has become certain since it was last asked for."""
        made = "".join(self._made)
        self._made.clear()
        return made

    def close(self) -> None:
        """End the value where it is: a string is cut; a key, number or word that is not whole goes,
        since it would be another one. An object that has not begun is empty."""
        if self._state == _OBJECT:
            self._made.append("{}")
        if self._state in (_STRING, _ESCAPE, _HEX) and not self._is_key:
            self._end_half()
            self._made.append('"')
        self._kept.clear()
        self._made += [each.replace(")", "]") for each in reversed(self._open)]
        self._open.clear()
        self._state = _DONE

    # ------------------------------------------------------------------ one letter

    def _step(self, letter: str) -> int:
        """Take a letter; return 0 if it is to be looked at again."""
        state = self._state
        if state == _STRING:
            self._in_string(letter)
        elif state == _ESCAPE:
            self._escape(letter)
        elif state == _HEX:
            return self._digit(letter)
        elif state == _WORDS:
            if letter not in _WORD_LETTERS:
                self._end_word()
                return 0
            self._word.append(letter)
        elif letter in SPACE:
            is_sure = state in (_NEXT, _FIRST, _FIRST_KEY)
            (self._made if is_sure else self._kept).append(letter)
        else:
            return self._structure(letter)
        return 1

    def _put(self, text: str) -> None:
        (self._kept if self._is_key else self._made).append(text)

    def _structure(self, letter: str) -> int:
        state, innermost = self._state, self._open[-1:]
        if innermost == [letter]:
            self._kept.clear()
            self._made.append(self._open.pop().replace(")", "]"))
            self._state = self._after_value()
        elif state == _NEXT and (letter in ",\"'{[(" or letter in _WORD_LETTERS):
            self._kept.append(",")
            self._state = _KEY if innermost == ["}"] else _VALUE
            return int(letter == ",")
        elif state == _COLON and letter == ":":
            self._kept.append(":")
            self._state = _VALUE
        elif state in (_KEY, _FIRST_KEY, _VALUE, _FIRST) or (state == _OBJECT and letter == "{"):
            self._begin(letter, is_key=state in (_KEY, _FIRST_KEY))
        else:
            raise ValueError(f"{letter!r} where it may not be")
        return 1

    def _begin(self, letter: str, *, is_key: bool) -> None:
        self._is_key = is_key
        if letter in _WORD_LETTERS:
            self._state, self._word = _WORDS, [letter]
            return
        if not is_key:
            self._made += self._kept
            self._kept.clear()
        if letter in "\"'":
            self._state, self._quote = _STRING, letter
            self._put('"')
        elif letter in _CLOSINGS and not is_key:
            if len(self._open) == MAX_DEPTH:
                raise ValueError("too deep")
            self._made.append(letter.replace("(", "["))
            self._open.append(_CLOSINGS[letter])
            self._state = _FIRST_KEY if letter == "{" else _FIRST
        else:
            raise ValueError(f"{letter!r} where a value is to be")

    def _after_value(self) -> int:
        return _NEXT if self._open else _DONE

    # ------------------------------------------------------------------ words and strings

    def _end_word(self) -> None:
        word = "".join(self._word)
        if self._is_key:
            self._kept.append(json.dumps(word))
            self._state = _COLON
        else:
            self._made += [*self._kept, _literal(word)]
            self._kept.clear()
            self._state = self._after_value()
        self.num_sure = self.num_taken

    def _in_string(self, letter: str) -> None:
        if letter == "\\":
            self._state = _ESCAPE
            return
        self._end_half()
        if letter == self._quote:
            self._put('"')
            self._state = _COLON if self._is_key else self._after_value()
        else:
            self._put(_escaped(letter))

    def _escape(self, letter: str) -> None:
        self._state = _STRING
        if letter == "u":
            self._state, self._hex = _HEX, ""
            return
        self._end_half()
        if letter in '"\\/bfnrt':
            self._put("\\" + letter)
        elif letter in "'\n":
            self._put(_escaped(letter))
        else:
            self._put("\\\\" + _escaped(letter))

    def _digit(self, letter: str) -> int:
        if letter not in "0123456789abcdefABCDEF":
            self._end_half()
            self._put("\\\\u" + self._hex)
            self._state = _STRING
            return 0
        self._hex += letter
        if len(self._hex) == 4:
            self._state = _STRING
            self._end_hex(self._hex)
        return 1

    def _end_hex(self, digits: str) -> None:
        kind = int(digits, 16) >> 10
        if self._half and kind == 0x37:
            self._put(f"\\u{self._half}\\u{digits}")
            self._half = ""
            return
        self._end_half()
        if kind == 0x36:
            self._half = digits
        else:
            self._put(_NO_CHARACTER if kind == 0x37 else f"\\u{digits}")

    def _end_half(self) -> None:
        if self._half:
            self._put(_NO_CHARACTER)
            self._half = ""


def mended(text: str) -> str:
    """Return the JSON of an object that is cut short, or written as models write it.

    Raises:
        ValueError: it is none.
    """
    made, bare = JsonText(is_object=True), text.strip()
    if made.take(bare, 0) < len(bare):
        raise ValueError("more than an object")
    made.close()
    return made.written()


def parts(text: str) -> Iterator[str]:
    """Yield parts of a text for a parser that copies the rest of one at each mark."""
    yield from (text[start : start + _PART] for start in range(0, len(text), _PART))


def held_back(text: str, *marks: str) -> int:
    """Return how many letters at the end of a text may be the beginning of a mark."""
    most = min(max(map(len, marks), default=1) - 1, len(text))
    ends = (text[-count:] for count in range(most, 0, -1))
    return next((len(end) for end in ends if any(m != end and m.startswith(end) for m in marks)), 0)


def _escaped(letter: str) -> str:
    """Return a letter as a string of JSON has it."""
    if "\ud800" <= letter <= "\udfff":
        return _NO_CHARACTER
    return json.dumps(letter, ensure_ascii=False)[1:-1]


def _literal(word: str) -> str:
    """Return a word as JSON has it, as a text if it has none such."""
    if (found := _LITERALS.get(word.lstrip("+-").lower())) is not None:
        return found
    try:
        number = float(word)
    except ValueError:
        return json.dumps(word)
    if not isfinite(number):
        return json.dumps(word)
    return word if _NUMBER.fullmatch(word) else json.dumps(number)
