"""A GGUF file's header: values about the model, checked for their types, and its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.json_file import MAX_INTEGER, MISSING, TypedFields, is_integer
from paged_core.errors import CheckpointError
from paged_core.field_rules import shown

READ = (
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
)
"""Types of tensors that are read, as ggml spells them."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """One way to store numbers: in blocks of some count and size, which lie along the rows."""

    name: str
    """As ggml spells it: ``F16``, ``Q4_K``."""
    length: int = 1
    """Numbers of a block."""
    num_bytes: int = 0
    """Bytes of a block."""

    @property
    def is_quantized(self) -> bool:
        """Return whether a block holds anything but a plain number."""
        return self.length > 1


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Type, shape and place of one tensor."""

    block_type: BlockType
    shape: tuple[int, ...]
    """The innermost side last, as torch has it."""
    begin: int
    """Bytes before it in the file."""

    @property
    def is_quantized_matrix(self) -> bool:
        """Return whether it is a matrix, and quantised."""
        return self.block_type.is_quantized and len(self.shape) == 2

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes."""
        return prod(self.shape) // self.block_type.length * self.block_type.num_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything in a file but its data."""

    path: Path
    metadata: Metadata
    tensors: Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class Metadata(TypedFields):
    """The values of a file, by names that may all begin alike.

    A list is a ``list`` of strings or an array of numbers.
    """

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""
    """Beginning of all names that are asked for."""
    read: set[str] = field(default_factory=set, compare=False)
    """Whole names of values that were asked for."""

    def within(self, prefix: str) -> Metadata:
        """Return the values whose names begin so."""
        return replace(self, prefix=prefix)

    def has(self, name: str) -> bool:
        """Return whether there is a value of this name."""
        return self._value(name, MISSING) is not MISSING

    def any(self, name: str, default: Any) -> Any:
        """Return a value as it is; ``default`` if it is missing."""
        return self._value(name, default)

    def unread(self) -> list[str]:
        """Return the names that nothing has asked for, without their common beginning."""
        left = self.values.keys() - self.read
        return sorted(
            name.removeprefix(self.prefix) for name in left if name.startswith(self.prefix)
        )

    def optional(self, name: str) -> float | None:
        """Return a number, or ``None`` if it is missing."""
        return self.number(name) if self.has(name) else None

    def integer(
        self, name: str, default: int = MISSING, *, least: int = 1, most: int = MAX_INTEGER
    ) -> int:
        """Return a whole number; in its place may be a list that gives every layer the same."""
        value = self.given(name, default)
        is_array = not _is_scalar(value) and not isinstance(value, list)
        if is_array and len(value):
            if (value != value[0]).any():
                raise self.wrong(name, "the same for all layers")
            value = value[0].item()
        if not is_integer(value, least, most):
            raise self.wrong(name, f"a whole number of at least {least} and at most {most}")
        return value

    def texts(self, name: str) -> Sequence[str]:
        """Return a list of strings."""
        value = self.given(name, MISSING)
        if not isinstance(value, list):
            raise self.wrong(name, "a list of strings")
        return value

    def numbers(self, name: str, count: int | None = None) -> Sequence[Any]:
        """Return a list of numbers, so many of them."""
        value = self.given(name, MISSING)
        if _is_scalar(value) or isinstance(value, list) or count not in (None, len(value)):
            raise self.wrong(name, f"a list of {'' if count is None else f'{count} '}numbers")
        numbers: Sequence[Any] = value.tolist()
        return numbers

    def wrong(self, name: str, kind: str) -> CheckpointError:
        """Return the error that a value is not of this kind."""
        given: Any = self.values.get(self.prefix + name)
        kind_given = "strings" if isinstance(given, list) else "numbers"
        named = shown(given) if _is_scalar(given) else f"a list of {len(given)} {kind_given}"
        return CheckpointError(f"in {self.path}, {self.prefix}{name} must be {kind}, not {named}")

    def given(self, name: str, default: Any) -> Any:
        """Return a value as it is; raise if it is missing and ``default`` is ``MISSING``."""
        value = self._value(name, default)
        if value is MISSING:
            raise CheckpointError(f"{self.path} lacks {self.prefix}{name}; convert the model again")
        return value

    def _value(self, name: str, default: Any) -> Any:
        self.read.add(self.prefix + name)
        return self.values.get(self.prefix + name, default)


def _is_scalar(value: object) -> bool:
    """Return whether a value is no list."""
    return value is None or isinstance(value, str | int | float)
