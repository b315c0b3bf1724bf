"""Types of settings, taken apart for reading text and for describing options."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_PLAIN = {int, float, bool, str, NoneType}


def members(kind: Any) -> list[Any]:
    """Return the types that a value may have, looking through unions and ``Annotated``."""
    if get_origin(kind) is Annotated:
        return members(get_args(kind)[0])
    if get_origin(kind) in {Union, UnionType}:
        return [member for part in get_args(kind) for member in members(part)]
    return [kind]


def is_container(kind: Any) -> bool:
    """Whether a value of this type is written as a list or a table."""
    return kind not in _PLAIN and get_origin(kind) is not Literal and kind is not Any
