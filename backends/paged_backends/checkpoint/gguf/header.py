"""The header of a GGUF file: values about the model, and where each tensor is.

The format, of which versions 2 and 3 are read (https://github.com/ggml-org/ggml, docs/gguf.md):
``GGUF``, a version (uint32), the number of tensors and that of values (uint64 each); the values,
each a name, a type and a value; the tensors, each a name, the number of its sides (uint32), its
sides, the innermost first (uint64), its type (uint32) and where it begins (uint64), counted from
the end of all this, rounded up to the alignment; the tensors' data. Numbers are stored in blocks of
some count and size, which lie along the rows of a tensor; their types are those of ggml.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from paged_backends.checkpoint.gguf.values import DamagedValues, Metadata, Value, ValueReader
from paged_core.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class BlockType:
    """One way to store numbers."""

    name: str
    """As ggml spells it: ``F16``, ``Q4_K``."""
    length: int = 1
    """Numbers of a block."""
    num_bytes: int = 0
    """Bytes of a block."""

    @property
    def is_quantized(self) -> bool:
        """Whether a block holds anything but a plain number."""
        return self.length > 1


BLOCK_TYPES: Mapping[int, BlockType] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
"""Those that are read, by their numbers in a file."""

OTHER_NAMES: Mapping[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Those that are not read, for the message that says so."""


_MAX_BYTES = 64 << 20
"""Before the data; the largest vocabularies take 10 MB."""
_MAX_NAME = 200
"""Characters."""
_MAX_SIDES = 4
_LEAST_VALUE, _LEAST_TENSOR = 13, 32
"""Bytes of the shortest value and tensor."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What the file says of one tensor."""

    block_type: BlockType
    shape: tuple[int, ...]
    """The innermost side last, as torch has it."""
    begin: int
    """Bytes before it in the file."""

    @property
    def is_quantized_matrix(self) -> bool:
        """Whether it is a matrix, and quantised."""
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


def read_header(path: Path) -> GgufHeader:
    """Read the header of a file, checked against its size.

    Raises:
        CheckpointError: the file cannot be read, is truncated or corrupt, is one of several, or
            holds a tensor of a type that is not read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise DamagedValues("it does not begin with GGUF")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data, size)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a GGUF file that can be read ({error}); download it again"
        ) from error


def _parse(path: Path, data: mmap.mmap, size: int) -> GgufHeader:
    reader = ValueReader(data, min(size, _MAX_BYTES))
    reader.position = 4
    version = reader.uint32()
    if version not in (2, 3):
        raise CheckpointError(
            f"{path} is GGUF of version {version}, and versions 2 and 3, little endian, are read; "
            "convert the model again with a recent llama.cpp"
        )
    num_tensors, num_values = reader.count(_LEAST_TENSOR), reader.count(_LEAST_VALUE)
    values: dict[str, Value] = {}
    for _ in range(num_values):
        name = _new_name(reader, values)
        values[name] = reader.value()
    metadata = Metadata(path, values)
    if metadata.integer("split.count", 1, most=1 << 16) > 1:
        raise CheckpointError(
            f"{path} is one of several files of a model; join them with `llama-gguf-split --merge`"
        )
    alignment = metadata.integer("general.alignment", 32, most=1 << 20)
    described: dict[str, StoredTensor] = {}
    for _ in range(num_tensors):
        name = _new_name(reader, described)
        described[name] = _tensor(path, name, reader)
    start = -(-reader.position // alignment) * alignment
    tensors = {
        name: StoredTensor(tensor.block_type, tensor.shape, start + tensor.begin)
        for name, tensor in described.items()
    }
    _check_places(tensors, size)
    return GgufHeader(path, metadata, tensors)


def _new_name(reader: ValueReader, known: Iterable[str]) -> str:
    name = reader.string()
    if not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
        raise DamagedValues(f"the name before byte {reader.position} is none")
    if name in known:
        raise DamagedValues(f"{name} is there twice")
    return name


def _tensor(path: Path, name: str, reader: ValueReader) -> StoredTensor:
    """Return a tensor that begins where the file says: after the start of the data."""
    num_sides = reader.uint32()
    if not 0 < num_sides <= _MAX_SIDES:
        raise DamagedValues(f"{name} has {num_sides} sides, and 1 to {_MAX_SIDES} are read")
    shape = tuple(reader.uint64() for _ in range(num_sides))[::-1]
    code = reader.uint32()
    block_type = BLOCK_TYPES.get(code)
    if block_type is None:
        raise CheckpointError(
            f"{name} in {path} is stored as {OTHER_NAMES.get(code, f'type {code}')}, and what is "
            f"read is {', '.join(each.name for each in BLOCK_TYPES.values())}; take another "
            "quantisation of the model"
        )
    if not all(shape) or shape[-1] % block_type.length:
        raise DamagedValues(f"{name} of {block_type.name} cannot have the shape {shape}")
    return StoredTensor(block_type, shape, reader.uint64())


def _check_places(tensors: Mapping[str, StoredTensor], size: int) -> None:
    """Check that every tensor is in the file, on a place of its own, where its numbers align."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
        if tensor.begin < end or tensor.begin % 4:
            raise DamagedValues(f"{name} begins at byte {tensor.begin}, where it cannot be")
        end = tensor.begin + tensor.num_bytes
        if end > size:
            raise DamagedValues(f"{name} ends at byte {end}, and the file at {size}")
