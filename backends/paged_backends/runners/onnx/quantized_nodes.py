"""Linear layers with quantised weights as nodes of a graph.

``MatMulNBits`` computes in float: with its arithmetic in 8 bits, activations are rounded too, and a
row's result depends on the last bits of what attention returns, and so on the rest of the batch.

On a CPU there is float arithmetic for weights of 4 bits only. A weight of 8 bits is the sum of two
of 4 bits, its high and its low half, and so is a linear layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.quantize import in_threads
from paged_backends.runners.native.quantized_linears import QuantizedLinears
from paged_backends.runners.native.stored_linear import StoredLinear
from paged_backends.runners.onnx.graph import CONTRIB, Graph
from paged_backends.runners.onnx.own_pages import own_pages

_FLOAT_ARITHMETIC = 1
"""What ``accuracy_level`` says of float32."""
_NUM_LOW = 16
"""Codes of the low half: a step of the high half is so many of the low one."""
_ROWS = 256
"""Rows of a matrix that are split into halves at a time."""


class QuantizedLinearNodes:
    """Weights in groups of inputs that share a scale.

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

    def __call__(self, graph: Graph, linear: StoredLinear, rows: str, /) -> str:
        """Return ``rows @ weight.T + bias``, for ``rows`` [T, I] in the dtype computed in."""
        matrix = self._linears.take(linear)
        scales = graph.weight(matrix.scales_OG.to(self._compute))
        if matrix.weight_format.bits == 8 and self._in_halves:
            result = self._sum_of_halves(graph, matrix, scales, rows)
        else:
            bits = matrix.weight_format.bits
            result = self._product(graph, matrix, matrix.codes_OGY, bits, rows, scales)
        if linear.bias_O is None:
            return result
        return graph.op("Add", result, graph.weight(linear.bias_O.to(self._compute)))

    def release(self) -> None:
        """Release the memory of the file that they are mapped from; what is used is read again."""
        self._linears.release()

    def _sum_of_halves(self, graph: Graph, matrix: QuantizedMatrix, scales: str, rows: str) -> str:
        """``code - 128`` is ``16 * (high - 8) + low``; to multiply rows by 16 is exact."""
        high, low = halves(matrix.codes_OGY)
        outputs, groups, _ = low.shape
        zeros = graph.weight(torch.zeros(outputs, -(-groups // 2), dtype=torch.uint8))
        factor = graph.weight(torch.tensor(_NUM_LOW, dtype=self._compute))
        larger = graph.op("Mul", rows, factor)
        return graph.op(
            "Add",
            self._product(graph, matrix, high, 4, larger, scales),
            self._product(graph, matrix, low, 4, rows, scales, zeros),
        )

    def _product(
        self, graph: Graph, matrix: QuantizedMatrix, codes: Tensor, bits: int, *inputs: str
    ) -> str:
        outputs, num_inputs = matrix.shape
        rows, *others = inputs
        return graph.op(
            "MatMulNBits",
            rows,
            graph.weight(codes, packable=self._packs_codes),
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
