"""Marks of cases that a class inherits from the conformance kit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import pytest

Class = TypeVar("Class", bound=type)


def heavy(*names: str) -> Callable[[Class], Class]:
    """Leave inherited cases to `make test-all`: copied, so that other classes keep theirs."""
    return _marked(pytest.mark.heavy, names)


def long(*names: str) -> Callable[[Class], Class]:
    """Leave inherited cases to `make test-long`, likewise."""
    return _marked(pytest.mark.long, names)


def _marked(mark: pytest.MarkDecorator, names: Iterable[str]) -> Callable[[Class], Class]:
    def marked(kind: Class) -> Class:
        for name in names:
            setattr(kind, name, mark(_copy(getattr(kind, name))))
        return kind

    return marked


def _copy(case: Callable[..., None]) -> Callable[..., None]:
    @wraps(case)
    def copy(*given: Any, **values: Any) -> None:
        case(*given, **values)

    return copy
