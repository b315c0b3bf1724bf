"""A tensor as it is stored, apart from what it becomes.

Shapes: R rows, B bytes of a row.
"""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from paged_backends.checkpoint.gguf.block_types import BlockType
from paged_backends.checkpoint.gguf.dequantize import DEQUANTIZE

_AT_ONCE = 1 << 17
"""Numbers that fit the nearer caches with what is computed on the way."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """Rows of blocks of one type; a view, which is only to be read."""

    block_type: BlockType
    shape: tuple[int, ...]
    """Of the numbers; all sides but the last are the rows."""
    bytes_RB: Tensor  # noqa: N815 - its shape
    """uint8."""

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers, computed in float32 and rounded to ``dtype``.

        Beside what is returned, a few megabytes are allocated.
        """
        # pages of its own, which are returned when it is freed: the heap would keep holes
        size = prod(self.shape) * dtype.itemsize
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        numbers = torch.frombuffer(memory, dtype=dtype).view(self.shape)
        blocks = self.bytes_RB.view(-1, self.block_type.num_bytes).numpy()
        parts = numbers.view(len(blocks), -1)
        step = _AT_ONCE // self.block_type.length

        def convert(begin: int) -> None:
            with np.errstate(invalid="ignore"):  # a scale may be infinite
                floats = DEQUANTIZE[self.block_type.name](blocks[begin : begin + step])
            parts[begin : begin + step] = torch.from_numpy(floats)

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for _ in pool.map(convert, range(0, len(blocks), step)):
                pass
        return numbers
