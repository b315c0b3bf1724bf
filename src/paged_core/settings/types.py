"""Types of settings, taken apart for reading text and describing options; sizes of memory."""

from __future__ import annotations

import re
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator

_PLAIN = {int, float, bool, str, NoneType}


def members(kind: Any) -> list[Any]:
    """Return the types that a value may have, looking through unions and ``Annotated``."""
    if get_origin(kind) is Annotated:
        return members(get_args(kind)[0])
    if get_origin(kind) in {Union, UnionType}:
        return [member for part in get_args(kind) for member in members(part)]
    return [kind]


def is_container(kind: Any) -> bool:
    """Return whether a value of this type is written as a list or a table."""
    return kind not in _PLAIN and get_origin(kind) is not Literal and kind is not Any


_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:%|([KMGT])(i?)B?|B)?", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def memory_size(value: object) -> object:
    """Read ``"2GiB"``, ``"500 MB"``, ``"80%"`` or a number; return other types as they are.

    Up to 1 it is a fraction, a float; above, bytes, an int.

    Raises:
        ValueError: it is malformed, not more than 0, or 2**63 bytes or more.
    """
    number = _number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return value
    if not number > 0:
        raise ValueError("memory must be more than 0")
    if number >= 2**63:
        raise ValueError("there is no memory of 2**63 bytes")
    if number <= 1:
        return float(number)
    if number != int(number):
        raise ValueError("a fraction of the memory is at most 1; above that, give whole bytes")
    return int(number)


def _number(text: str) -> float:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("give bytes, such as 2GiB or 500MB, or a fraction, such as 0.5")
    number, unit, binary = float(found[1]), found[2], found[3]
    if unit:
        return float(number * (1024 if binary else 1000) ** _POWERS[unit.upper()] // 1)
    return number / 100 if "%" in text else number


MemorySize = Annotated[
    int | float, BeforeValidator(memory_size, json_schema_input_type=int | float | str)
]
"""Bytes (an int), or a fraction of the free memory (a float of at most 1)."""
