"""The values at the beginning of a GGUF file, read within bounds, and checked for their types.

All numbers are little endian. A string is its length in bytes (uint64) and its UTF-8; an array is
the type of its elements (uint32), their number (uint64) and the elements.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.json_file import MAX_INTEGER, MISSING, TypedFields, is_integer
from paged_core.errors import CheckpointError
from paged_core.field_rules import shown

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


@dataclass(frozen=True, slots=True)
class Metadata(TypedFields):
    """The values of a file, by names that may all begin alike."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""
    """Of all names that are asked for."""

    def within(self, prefix: str) -> Metadata:
        """Return the values whose names begin so."""
        return replace(self, prefix=prefix)

    def has(self, name: str) -> bool:
        """Whether there is a value of this name."""
        return self.prefix + name in self.values

    def any(self, name: str, default: Any) -> Any:
        """Return a value as it is; ``default`` if it is missing."""
        return self.values.get(self.prefix + name, default)

    def optional(self, name: str) -> float | None:
        """Return a number, or ``None`` if it is missing."""
        return self.number(name) if self.has(name) else None

    def integer(
        self, name: str, default: int = MISSING, *, least: int = 1, most: int = MAX_INTEGER
    ) -> int:
        """As above; in its place may be a list that gives every layer the same one."""
        value = self.given(name, default)
        if isinstance(value, Sequence) and len(set(value)) == 1:
            value = value[0]
        if not is_integer(value, least, most):
            raise self.wrong(name, f"a whole number of at least {least} and at most {most}")
        return value

    def texts(self, name: str) -> Sequence[str]:
        """Return a list of strings."""
        value = self.given(name, MISSING)
        if not isinstance(value, list):
            raise self.wrong(name, "a list of strings")
        return value

    def numbers(self, name: str, count: int) -> Sequence[float]:
        """Return a list of so many numbers."""
        value = self.given(name, MISSING)
        if isinstance(value, list | str) or not isinstance(value, Sequence) or len(value) != count:
            raise self.wrong(name, f"a list of {count} numbers")
        return value

    def wrong(self, name: str, kind: str) -> CheckpointError:
        """See :class:`TypedFields`."""
        given = self.values.get(self.prefix + name)
        named = shown(given)
        if isinstance(given, Sequence) and not isinstance(given, str):
            named = f"a list of {len(given)}"
        return CheckpointError(f"in {self.path}, {self.prefix}{name} must be {kind}, not {named}")

    def given(self, name: str, default: Any) -> Any:
        """See :class:`TypedFields`."""
        value = self.values.get(self.prefix + name, default)
        if value is MISSING:
            raise CheckpointError(f"{self.path} lacks {self.prefix}{name}; convert the model again")
        return value
