"""Linear layers with quantised weights as nodes of a graph.

``MatMulNBits`` computes in float: with its arithmetic in 8 bits, activations are rounded too, and a
row's result depends on the last bits of what attention returns, and so on the rest of the batch.

On a CPU there is float arithmetic for weights of 4 bits only. A weight of 8 bits is the sum of two
of 4 bits, its high and its low half, and so is a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.runners.onnx.graph import CONTRIB, Graph
from paged_backends.runners.onnx.recorded_ops import RecordedLinear

_FLOAT_ARITHMETIC = 1
"""What ``accuracy_level`` says of float32."""
_NUM_LOW = 16
"""Codes of the low half: a step of the high half is so many of the low one."""
_ROWS = 256
"""Rows of a matrix that are split into halves at a time."""


class QuantizedLinearNodes:
    """Weights in groups of inputs that share a scale.

    Args:
        quantized: returns the quantised weight of a linear layer.
        compute: the dtype of activations.
        in_halves: compute weights of 8 bits as sums of two of 4 bits.
        packs_codes: the session copies codes in another order and needs their memory no longer.
    """

    def __init__(
        self,
        quantized: Callable[[RecordedLinear], QuantizedMatrix],
        compute: torch.dtype,
        *,
        in_halves: bool,
        packs_codes: bool,
    ) -> None:
        self._quantized = quantized
        self._compute = compute
        self._in_halves = in_halves
        self._packs_codes = packs_codes

    def __call__(self, graph: Graph, linear: RecordedLinear, rows: str, /) -> str:
        """Return ``rows @ weight.T + bias``, for ``rows`` [T, I] in the dtype computed in."""
        matrix = self._quantized(linear)
        scales = graph.weight(matrix.scales_OG.to(self._compute))
        if matrix.weight_format.bits == 8 and self._in_halves:
            result = self._sum_of_halves(graph, matrix, scales, rows)
        else:
            bits = matrix.weight_format.bits
            result = self._product(graph, matrix, matrix.codes_OGY, bits, rows, scales)
        if linear.bias_O is None:
            return result
        return graph.op("Add", result, graph.weight(linear.bias_O.to(self._compute)))

    def _sum_of_halves(
        self, graph: Graph, matrix: QuantizedMatrix, scales: str, rows: str
    ) -> str:
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


def halves(codes_OGS: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and the low halves of codes of 8 bits: [O, G, S / 2], two in a byte each."""
    shape = (*codes_OGS.shape[:2], codes_OGS.shape[2] // 2)
    high, low = torch.empty(shape, dtype=torch.uint8), torch.empty(shape, dtype=torch.uint8)
    for some, into_high, into_low in zip(
        *(torch.split(tensor, _ROWS) for tensor in (codes_OGS, high, low)), strict=True
    ):
        even, odd = some[..., 0::2], some[..., 1::2]
        torch.bitwise_or(even >> 4, odd & 0xF0, out=into_high)
        torch.bitwise_or(even & 0x0F, odd << 4, out=into_low)
    return high, low
