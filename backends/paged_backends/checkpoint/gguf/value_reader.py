"""Reads the values at the beginning of a GGUF file, one after another, within bounds.

All numbers are little endian. A string is its length in bytes (uint64) and its UTF-8; an array is
the type of its elements (uint32), their number (uint64) and the elements.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from mmap import mmap
from typing import Any

Value = int | float | bool | str | Sequence[Any]

_NUMBERS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_UINT32, _UINT64 = _NUMBERS[4], _NUMBERS[10]


class DamagedValues(ValueError):
    """What the file says makes no sense; the message says where."""


class ValueReader:
    """A position in a file; every method reads what begins there, and moves behind it.

    Each raises :class:`DamagedValues` if what it reads would end behind ``end``, or is not valid.
    Nothing is allocated before it is known to be in the file.
    """

    def __init__(self, data: bytes | mmap, end: int) -> None:
        self._data = data
        self._end = end
        self.position = 0

    def uint32(self) -> int:
        """Return a number of 32 bits."""
        return int(self._number(_UINT32))

    def uint64(self) -> int:
        """Return a number of 64 bits."""
        return int(self._number(_UINT64))

    def count(self, least_bytes: int) -> int:
        """Return how many things follow, of which each takes at least so many bytes."""
        count = self.uint64()
        if count * least_bytes > self._end - self.position:
            raise DamagedValues(f"it announces {count} entries at byte {self.position}")
        return count

    def string(self) -> str:
        """Return a string."""
        return self._strings(1)[0]

    def value(self) -> Value:
        """Return a value, which follows its type."""
        kind = self.uint32()
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._elements()
        if kind not in _NUMBERS:
            raise DamagedValues(f"there is no type {kind} (byte {self.position})")
        number: int | float | bool = self._number(_NUMBERS[kind])
        return number

    def _elements(self) -> Sequence[Any]:
        kind = self.uint32()
        if kind == _STRING:
            return self._strings(self.count(_UINT64.size))
        if kind not in _NUMBERS:
            raise DamagedValues(f"there is no array of the type {kind} (byte {self.position})")
        number = _NUMBERS[kind]
        count = self.count(number.size)
        begin = self.position
        self.position += count * number.size
        elements = array("B" if number.format == "<?" else number.format[1])
        elements.frombytes(self._data[begin : self.position])
        if sys.byteorder == "big":
            elements.byteswap()
        return elements

    def _strings(self, count: int) -> list[str]:
        data, end, position = self._data, self._end, self.position
        unpack, strings = _UINT64.unpack_from, []
        for _ in range(count):
            begin = position + 8
            if begin > end:
                raise DamagedValues(f"a string begins at byte {position}, behind the last value")
            position = begin + unpack(data, position)[0]
            if position > end:
                raise DamagedValues(f"the string at byte {begin} is too long")
            try:
                strings.append(data[begin:position].decode())
            except UnicodeDecodeError as error:
                raise DamagedValues(f"the string at byte {begin} is not UTF-8") from error
        self.position = position
        return strings

    def _number(self, number: struct.Struct) -> Any:
        begin = self.position
        if begin + number.size > self._end:
            raise DamagedValues(f"a number begins at byte {begin}, behind the last value")
        self.position += number.size
        return number.unpack_from(self._data, begin)[0]
