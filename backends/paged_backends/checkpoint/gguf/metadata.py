"""The values of a GGUF file by name, checked for their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from paged_backends.checkpoint.numbers import MAX_INTEGER, NUMBER, is_integer, is_number
from paged_core.errors import CheckpointError
from paged_core.field_rules import shown

_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Metadata:
    """Every method returns a value, ``default`` if it is missing, and raises
    :class:`CheckpointError` if there is neither, or it is of another type.
    """

    path: Path
    values: Mapping[str, Any]

    def has(self, name: str) -> bool:
        """Whether there is a value of this name."""
        return name in self.values

    def integer(
        self, name: str, default: int = _MISSING, *, least: int = 1, most: int = MAX_INTEGER
    ) -> int:
        """Return a whole number of at least ``least`` and at most ``most``.

        In its place may be a list that gives every layer the same one.
        """
        value = self._given(name, default)
        if isinstance(value, Sequence) and len(set(value)) == 1:
            value = value[0]
        if not is_integer(value, least, most):
            raise self.wrong(name, f"a whole number of at least {least} and at most {most}")
        return value

    def number(self, name: str, default: float = _MISSING) -> float:
        """Return a positive number."""
        value = self._given(name, default)
        if not is_number(value):
            raise self.wrong(name, NUMBER)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self._given(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str = _MISSING) -> str:
        """Return a string."""
        value = self._given(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def texts(self, name: str) -> Sequence[str]:
        """Return a list of strings."""
        value = self._given(name, _MISSING)
        if not isinstance(value, list):
            raise self.wrong(name, "a list of strings")
        return value

    def numbers(self, name: str, count: int) -> Sequence[float]:
        """Return a list of so many numbers."""
        value = self._given(name, _MISSING)
        if isinstance(value, list | str) or not isinstance(value, Sequence) or len(value) != count:
            raise self.wrong(name, f"a list of {count} numbers")
        return value

    def wrong(self, name: str, kind: str) -> CheckpointError:
        """Return the error for a value that is not of this kind."""
        given = self.values.get(name)
        named = f"a list of {len(given)}" if _is_list(given) else shown(given)
        return CheckpointError(f"in {self.path}, {name} must be {kind}, not {named}")

    def _given(self, name: str, default: Any) -> Any:
        value = self.values.get(name, default)
        if value is _MISSING:
            raise CheckpointError(f"{self.path} lacks {name}; convert the model again")
        return value


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)
