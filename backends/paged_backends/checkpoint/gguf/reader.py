"""The header of a GGUF file, read by the package ``gguf`` within bounds.

That package makes an object of every number in a list (seconds for a vocabulary), reads on behind
the end of a file, and does whatever a file says a million times. Here lists are read as a whole,
nothing behind the header's bound is read, and what a file announces is counted first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType
from gguf.gguf_reader import READER_SUPPORTED_VERSIONS, ReaderField

from paged_backends.checkpoint.gguf.header import (
    READ,
    BlockType,
    GgufHeader,
    Metadata,
    StoredTensor,
)
from paged_core.errors import CheckpointError

_MAX_BYTES = 64 << 20
"""Before the data; the largest vocabularies take 10 MB."""
_MAX_ENTRIES = 1 << 14
"""Values, and tensors; the largest models have 1,200."""
_MAX_NAME = 200
"""Characters."""
_MAX_SIDES = 4


class _Reader(GGUFReader):
    """Reads the header of one file; raises ``ValueError`` or ``KeyError`` where it is damaged."""

    stored: dict[str, tuple[GGMLQuantizationType, tuple[int, ...], int]]
    """Type, shape and first byte of each tensor."""

    def values(self) -> dict[str, Any]:
        """Return the values: numbers, strings, lists of strings and arrays of numbers."""
        return {
            name: field.parts[-1] if _is_list(field) else field.contents()
            for name, field in self.fields.items()
        }

    def _get(
        self, offset: int, dtype: Any, count: int = 1, override_order: Any = None
    ) -> np.ndarray[Any, Any]:
        end = offset + np.dtype(dtype).itemsize * int(count)
        if end > min(len(self.data), _MAX_BYTES):
            raise ValueError(f"what begins at byte {offset} ends behind the last value")
        return super()._get(offset, dtype, count, override_order)

    def _build_fields(self, offs: int, count: int) -> int:
        _check_count(count)
        return super()._build_fields(offs, count)

    def _build_tensor_info(self, offs: int, count: int) -> tuple[int, list[ReaderField]]:
        _check_count(count)
        return super()._build_tensor_info(offs, count)

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        """Return the bytes that a value takes, its parts, the places of its data, and its types."""
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = GGUFValueType(self._get(orig_offs, np.uint32)[0])
        count, begin = int(self._get(orig_offs + 4, np.uint64)[0]), orig_offs + 12
        elements: Any
        if kind == GGUFValueType.STRING:
            elements, end = self._strings(begin, count)
        elif kind in self.gguf_scalar_to_np:
            elements = self._get(begin, self.gguf_scalar_to_np[kind], count)
            end = begin + elements.nbytes
        else:
            raise ValueError(f"there is no list of {kind.name}")
        return end - orig_offs, [elements], [0], [GGUFValueType.ARRAY, kind]

    def _strings(self, begin: int, count: int) -> tuple[list[str], int]:
        """Return strings that lie one after another, and where they end."""
        self._get(begin, np.uint64, count)  # each takes 8 bytes at least
        data, end = self.data.data, min(len(self.data), _MAX_BYTES)
        strings, place = [], begin
        for _ in range(count):
            place += 8
            if place > end:
                raise ValueError(f"a string begins at byte {place}, behind the last value")
            first, place = place, place + struct.unpack_from("<Q", data, place - 8)[0]
            if place > end:
                raise ValueError(f"the string at byte {first} is too long")
            strings.append(str(data[first:place], "utf-8"))
        return strings, place

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        """Note where the tensors are, and map none."""
        self.stored = {}
        for field in fields:
            *_, num_sides, sides, kind, begin = field.parts
            if field.name in self.stored:
                raise ValueError(f"{field.name} is there twice")
            if not 0 < num_sides[0] <= _MAX_SIDES:
                raise ValueError(f"{field.name} has {num_sides[0]} sides")
            place = int(start_offs) + int(begin[0])
            self.stored[field.name] = GGMLQuantizationType(kind[0]), tuple(sides.tolist()), place


def _is_list(field: ReaderField) -> bool:
    return field.types[0] == GGUFValueType.ARRAY


def _check_count(count: int) -> None:
    if count > _MAX_ENTRIES:
        raise ValueError(f"it announces {count} entries, and at most {_MAX_ENTRIES} are read")


def read_header(path: Path) -> GgufHeader:
    """Read the header of a file, checked against its size.

    Raises:
        CheckpointError: the file cannot be read, is truncated or corrupt, is one of several, or
            holds a tensor of a type that is not read.
    """
    try:
        with path.open("rb") as file:
            magic, version = file.read(4), file.read(4)
        if magic != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if version[:2] == bytes(2):
            raise CheckpointError(
                f"{path} is a GGUF file whose numbers are big endian, and little-endian ones are "
                "read; convert the model again, for little-endian machines"
            )
        number = int.from_bytes(version, "little")
        if len(version) == 4 and number not in READER_SUPPORTED_VERSIONS:
            raise CheckpointError(
                f"{path} is of version {number} of GGUF, and 2 and 3 are read; "
                "convert the model again, with today's llama.cpp"
            )
        with np.errstate(all="ignore"):  # of sums that a damaged file makes too large
            reader = _Reader(path)
        values = reader.values()
        _check_names([*values, *reader.stored])
        metadata = Metadata(path, values)
        if metadata.integer("split.count", 1, most=1 << 16) > 1:
            raise CheckpointError(
                f"{path} is one of several files of a model; join them with "
                "`llama-gguf-split --merge`"
            )
        tensors = {name: _tensor(path, name, *stored) for name, stored in reader.stored.items()}
        _check_places(tensors, path.stat().st_size, int(reader.alignment))
    except (OSError, ValueError, LookupError, OverflowError) as error:
        raise CheckpointError(
            f"{path} is not a GGUF file that can be read ({_reason(error)}); download it again"
        ) from error
    return GgufHeader(path, metadata, tensors)


def _reason(error: Exception) -> object:
    return error.args[0] if isinstance(error, KeyError) else error


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
            raise ValueError(f"{name[:50]!r} is no name")


def _tensor(
    path: Path, name: str, kind: GGMLQuantizationType, sides: tuple[int, ...], begin: int
) -> StoredTensor:
    if kind.name not in READ:
        raise CheckpointError(
            f"{name} in {path} is stored as {kind.name}, and what is read is {', '.join(READ)}; "
            "take another quantisation of the model"
        )
    block_type, shape = BlockType(kind.name, *GGML_QUANT_SIZES[kind]), sides[::-1]
    if not all(shape) or shape[-1] % block_type.length:
        raise ValueError(f"{name} of {kind.name} cannot have the shape {shape}")
    return StoredTensor(block_type, shape, begin)


def _check_places(tensors: dict[str, StoredTensor], size: int, alignment: int) -> None:
    """Check that tensors fill the file, each on a place of its own, where its numbers align."""
    end, step = 0, max(4, alignment)
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
        if tensor.begin < end or tensor.begin % step:
            raise ValueError(f"{name} begins at byte {tensor.begin}, where it cannot be")
        end = tensor.begin + tensor.num_bytes
        if end > size:
            raise ValueError(f"{name} ends at byte {end}, and the file at {size}")
    if tensors and size - end >= step:
        raise ValueError(
            f"its last tensor ends at byte {end}, and the file at {size}: general.alignment is not "
            f"{alignment}, or tensors are missing from its header"
        )
