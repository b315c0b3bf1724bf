"""Inherited cases that are left to the long tests, `make test-long`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import pytest

Class = TypeVar("Class", bound=type)


def left_to_long_tests(*names: str) -> Callable[[Class], Class]:
    """Mark cases that a class inherits as slow, for it and its subclasses."""

    def mark(kind: Class) -> Class:
        for name in names:
            setattr(kind, name, pytest.mark.slow(_copy(getattr(kind, name))))
        return kind

    return mark


def _copy(case: Callable[..., None]) -> Callable[..., None]:
    """A case with marks of its own."""

    @wraps(case)
    def copy(self: Any, **values: Any) -> None:
        case(self, **values)

    return copy
