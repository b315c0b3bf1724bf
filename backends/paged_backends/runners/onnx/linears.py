"""Linear layers as nodes of a graph, of weights in floating point or quantised.

Shapes: T tokens, I inputs, O outputs, G groups of inputs, Y bytes of a group.
"""

# ruff: noqa: N803 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.quantize import in_threads
from paged_backends.runners.native.linear_maker import StoredLinear
from paged_backends.runners.native.ops import Linear, added
from paged_backends.runners.native.quantized_linears import QuantizedLinears
from paged_backends.runners.onnx.graph import Symbol
from paged_backends.runners.onnx.sessions import CONTRIB

_FLOAT_ARITHMETIC = 1
"""What ``accuracy_level`` says of float32."""
_NUM_LOW = 16
"""Codes of the low half: a step of the high half is so many of the low one."""
_ROWS = 256
"""Rows of a matrix that are split into halves at a time."""


class GraphLinears(Protocol):
    """Makes linear layers that take symbols, in one format of weights."""

    def __call__(self, linear: StoredLinear, /) -> Linear:
        """Return the layer; its weight is read when it is called."""

    def release(self) -> None:
        """Release the memory of what was read to make the sessions of earlier graphs."""


class FloatLinears:
    """Weights in the dtype that is computed in."""

    def __init__(self, compute: torch.dtype) -> None:
        self._compute = compute

    def __call__(self, linear: StoredLinear, /) -> Linear:
        """See :class:`GraphLinears`."""

        def apply(rows_TI: Any, residual_TO: Any = None) -> Any:
            graph = rows_TI.graph
            given = [graph.weight(in_own_pages(linear.rows, self._compute), packable=True)]
            if linear.bias_O is not None:
                given.append(graph.weight(linear.bias_O.to(self._compute)))
            return added(rows_TI.op("Gemm", *given, transB=1), residual_TO)

        return apply

    def release(self) -> None:
        """Do nothing: the assembly releases what is stored in floating point."""


class QuantizedGraphLinears:
    """Weights in groups of inputs that share a scale.

    ``MatMulNBits`` computes in float: with its arithmetic in 8 bits, activations are rounded too,
    and a row's result depends on the last bits of what attention returns, and so on the rest of the
    batch. On a CPU there is float arithmetic for weights of 4 bits only. A weight of 8 bits is the
    sum of two of 4 bits, its high and its low half, and so is a linear layer.

    Args:
        linears: their weights, quantised.
        compute: the dtype of activations.
        in_halves: compute weights of 8 bits as sums of two of 4 bits.
        packs_codes: a session copies codes, and does not need the originals.
    """

    def __init__(
        self,
        linears: QuantizedLinears,
        compute: torch.dtype,
        *,
        in_halves: bool,
        packs_codes: bool,
    ) -> None:
        self._linears = linears
        self._compute = compute
        self._in_halves = in_halves
        self._packs_codes = packs_codes

    def __call__(self, linear: StoredLinear, /) -> Linear:
        """See :class:`GraphLinears`."""

        def apply(rows_TI: Any, residual_TO: Any = None) -> Any:
            matrix = self._linears.take(linear)
            scales = rows_TI.graph.weight(matrix.scales_OG.to(self._compute))
            if matrix.weight_format.bits == 8 and self._in_halves:
                result = self._sum_of_halves(matrix, scales, rows_TI)
            else:
                bits = matrix.weight_format.bits
                result = self._product(matrix, matrix.codes_OGY, bits, rows_TI, scales)
            if linear.bias_O is not None:
                result = result.add_(rows_TI.graph.weight(linear.bias_O.to(self._compute)))
            return added(result, residual_TO)  # type: ignore[arg-type]

        return apply

    def release(self) -> None:
        """Release the memory of the file that they are mapped from; what is used is read again."""
        self._linears.release()

    def _sum_of_halves(self, matrix: QuantizedMatrix, scales: Symbol, rows: Symbol) -> Symbol:
        """``code - 128`` is ``16 * (high - 8) + low``; to multiply rows by 16 is exact."""
        graph = rows.graph
        high, low = halves(matrix.codes_OGY)
        outputs, groups, _ = low.shape
        zeros = graph.weight(torch.zeros(outputs, -(-groups // 2), dtype=torch.uint8))
        larger = rows * graph.weight(torch.tensor(_NUM_LOW, dtype=self._compute))
        highs = self._product(matrix, high, 4, larger, scales)
        return highs.add_(self._product(matrix, low, 4, rows, scales, zeros))

    def _product(
        self, matrix: QuantizedMatrix, codes: Tensor, bits: int, rows: Symbol, *others: Symbol
    ) -> Symbol:
        outputs, num_inputs = matrix.shape
        return rows.op(
            "MatMulNBits",
            rows.graph.weight(codes, packable=self._packs_codes),
            *others,
            domain=CONTRIB,
            K=num_inputs,
            N=outputs,
            bits=bits,
            block_size=matrix.weight_format.group_size,
            accuracy_level=_FLOAT_ARITHMETIC,
        )


def halves(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and the low halves of codes of 8 bits [outputs, groups, group size].

    Both are [outputs, groups, group size / 2]: a byte holds two, the first in its low half.
    """
    shape = (*codes.shape[:2], codes.shape[2] // 2)
    high, low = own_pages(shape, torch.uint8), own_pages(shape, torch.uint8)

    def split(rows: slice) -> None:
        pairs = codes[rows].view(torch.int16)  # the first code in the low byte
        high[rows] = (pairs >> 4 & 0x0F) | (pairs >> 8 & 0xF0)
        low[rows] = (pairs & 0x0F) | (pairs >> 4 & 0xF0)

    in_threads(split, [slice(row, row + _ROWS) for row in range(0, len(codes), _ROWS)])
    return high, low


def in_own_pages(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return matrices of equal width in ``dtype`` and contiguous, one below the other.

    One that is so already is returned itself, and otherwise a copy.
    """
    if len(parts) == 1 and parts[0].dtype == dtype and parts[0].is_contiguous():
        return parts[0]
    stacked = own_pages((sum(len(part) for part in parts), parts[0].shape[1]), dtype)
    for part, rows in zip(parts, torch.split(stacked, [len(part) for part in parts]), strict=True):
        rows.copy_(part)
    return stacked


def own_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros whose memory goes back to the system as soon as they are dropped.

    Between what sessions allocate, the allocator of the C library would keep it for later copies: a
    third of the weights' size in the end.
    """
    pages = mmap.mmap(-1, prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(*shape)
