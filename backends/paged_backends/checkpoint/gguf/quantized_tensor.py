"""A tensor as it is stored, apart from what it becomes.

Shapes: R rows, B bytes of a row; of a part of the blocks, N blocks with G groups of S codes.
"""

# ruff: noqa: N806, N815 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from paged_backends.checkpoint.gguf.block_types import BlockType
from paged_backends.checkpoint.gguf.unpack import UNPACK, Unpacked
from paged_backends.quantization.code_pairs import in_pairs
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.quantization.workers import in_threads

_AT_ONCE = 1 << 17
"""Numbers that fit the nearer caches with what is computed on the way."""

_FORMATS = {
    "Q4_0": WeightFormat(4, 32),
    "Q4_1": WeightFormat(4, 32),
    "Q5_0": WeightFormat(8, 32),
    "Q5_1": WeightFormat(8, 32),
    "Q8_0": WeightFormat(8, 32),
    "Q2_K": WeightFormat(4, 16),
    "Q3_K": WeightFormat(4, 16),
    "Q4_K": WeightFormat(4, 32),
    "Q5_K": WeightFormat(8, 32),
    "Q6_K": WeightFormat(8, 16),
}
"""What holds the codes of a type of blocks."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """Rows of blocks of one type; a view, which is only to be read."""

    block_type: BlockType
    shape: tuple[int, ...]
    """Of the numbers; all sides but the last are the rows."""
    bytes_RB: Tensor
    """uint8."""

    def rows(self, indices: Tensor) -> QuantizedTensor:
        """Return some of the rows of a matrix, in an order, copied."""
        shape = (len(indices), self.shape[-1])
        return replace(self, shape=shape, bytes_RB=self.bytes_RB[indices])

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers, computed in float32 and rounded to ``dtype``.

        Beside what is returned, a few megabytes are allocated.
        """
        numbers = _new(self.shape, dtype)
        parts = numbers.view(-1, self.block_type.length)

        def convert(first: int, end: int, part: Unpacked) -> None:
            parts[first:end] = torch.from_numpy(part.numbers())

        self._in_parts(convert)
        return numbers

    def matrix(self) -> QuantizedMatrix:
        """Return a matrix with its codes, as they are or in 8 bits: the numbers are the same.

        Where codes of 4 bits count from 0, and not from their middle, the offset of a group is
        rounded to float32 once more.
        """
        outputs, inputs = self.shape
        chosen = _FORMATS[self.block_type.name]
        shape = outputs, inputs
        codes = torch.empty(chosen.codes_shape(shape), dtype=torch.uint8)
        scales = torch.empty(chosen.scales_shape(shape))
        offsets: Tensor | None = None
        if self._unpacked(self._blocks()[:1]).offsets_NG is not None:
            offsets = torch.empty_like(scales)
        groups = self.block_type.length // chosen.group_size
        of_codes, of_scales = codes.view(-1, groups, codes.shape[2]), scales.view(-1, groups)

        def convert(first: int, end: int, part: Unpacked) -> None:
            of_codes[first:end] = _stored_codes(part, chosen).view(end - first, groups, -1)
            of_scales[first:end] = torch.from_numpy(part.scales_NG)
            if offsets is not None:
                offsets.view(-1, groups)[first:end] = _stored_offsets(part, chosen)

        self._in_parts(convert)
        return QuantizedMatrix(chosen, shape, codes, scales, offsets)

    def _blocks(self) -> Tensor:
        return self.bytes_RB.view(-1, self.block_type.num_bytes)

    def _unpacked(self, blocks: Tensor) -> Unpacked:
        with np.errstate(invalid="ignore"):  # a scale may be infinite
            return UNPACK[self.block_type.name](blocks.numpy())

    def _in_parts(self, convert: Callable[[int, int, Unpacked], None]) -> None:
        """Call ``convert`` with the first block of a part, its end, and the part, in threads."""
        blocks = self._blocks()
        step = _AT_ONCE // self.block_type.length

        def run(first: int) -> None:
            part = blocks[first : first + step]
            with np.errstate(invalid="ignore"):
                convert(first, first + len(part), self._unpacked(part))

        firsts = range(0, len(blocks), step)
        if len(firsts) > 1:
            in_threads(run, firsts)
        elif firsts:
            run(0)


def _new(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return memory for many numbers in pages of its own, which are returned when it is freed."""
    count = prod(shape)
    if count <= _AT_ONCE:
        return torch.empty(shape, dtype=dtype)
    # the heap would keep holes
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _counts_from_zero(part: Unpacked, chosen: WeightFormat) -> bool:
    """Whether codes are stored as they are; others are moved to the middle of theirs."""
    return chosen.bits == 4 and part.codes_NL.dtype == np.uint8


def _stored_codes(part: Unpacked, chosen: WeightFormat) -> Tensor:
    """Return [N, Y]."""
    codes_NL = torch.from_numpy(part.codes_NL.view(np.uint8))
    if not _counts_from_zero(part, chosen):
        codes_NL = codes_NL + chosen.middle  # modulo 256, as the numbers of two's complement
    return in_pairs(codes_NL) if chosen.bits == 4 else codes_NL


def _stored_offsets(part: Unpacked, chosen: WeightFormat) -> Tensor:
    """Return [N, G]."""
    assert part.offsets_NG is not None
    if not _counts_from_zero(part, chosen):
        return torch.from_numpy(part.offsets_NG)
    return torch.from_numpy(part.offsets_NG + chosen.middle * part.scales_NG)
