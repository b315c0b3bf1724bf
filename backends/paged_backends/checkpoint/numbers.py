"""Which numbers of a configuration can be computed with."""

from __future__ import annotations

from typing import TypeGuard

MAX_INTEGER = 2**31 - 1
_MIN_NUMBER, _MAX_NUMBER = 1e-30, 1e30
"""Far enough from what float32 rounds to zero or infinity to compute with."""

NUMBER = f"a number from {_MIN_NUMBER} to {_MAX_NUMBER}"


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is :data:`NUMBER`; NaN is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return _MIN_NUMBER <= value <= _MAX_NUMBER


def is_integer(value: object, least: int, most: int = MAX_INTEGER) -> TypeGuard[int]:
    """Whether ``value`` is a whole number of at least ``least`` and at most ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
