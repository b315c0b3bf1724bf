"""Makes linear layers of weights in the form in which a source has them, quantised or not.

Shapes: O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paged_backends.checkpoint.weights import Weights
from paged_backends.quantization.matrix import QuantizedMatrix, stacked
from paged_backends.quantization.weight_format import Shape
from paged_backends.runners.native.ops import Linear, Ops

SCALE_BYTES = 2
"""Bytes of a scale, or of an offset, in the packed weights of the kernels."""
_DEQUANTIZED = 1 << 22
"""Weights that are in float32 at a time."""

MakeLinear = Callable[[Sequence[Tensor], Tensor | None], Linear]
"""Makes a linear layer of weights [., I], one below the other, and a bias [O]."""


class LinearMaker:
    """Makes one linear layer after another, and counts what their weights take.

    Args:
        ops: make layers of weights in ``dtype`` on ``device``, or of quantised ones.
        make: makes layers instead, of weights as they are stored.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
        make: MakeLinear | None,
    ) -> None:
        self._weights = weights
        self._ops = ops
        self._dtype = dtype
        self._device = device
        self._make = make
        self._num_weights = self._num_bytes = 0

    @property
    def bytes_per_weight(self) -> float:
        """What a weight of the layers takes that were made, on average."""
        return self._num_bytes / self._num_weights

    def stored(
        self,
        names: Sequence[str],
        outputs: Sequence[int],
        inputs: int,
        bias: Tensor | None,
        *,
        transposed: bool,
    ) -> Linear:
        """Return one layer in place of several that have the same input.

        It stays quantised if all of them are; otherwise those that are quantised are dequantised.

        Args:
            names: of the weights.
            bias: [O], of all outputs together.
            transposed: those that are not quantised are stored as [I, O].
        """
        shapes = [(count, inputs) for count in outputs]
        matrices = [self._quantized(*each) for each in zip(names, shapes, strict=True)]
        found = [matrix for matrix in matrices if matrix is not None]
        if len(found) == len(names) and self._ops.computes_quantized:
            return self._of_matrix(stacked(found), bias)
        weights = []
        for name, shape, matrix in zip(names, shapes, matrices, strict=True):
            if matrix is not None:
                weights.append(self._dequantized(matrix))
            elif transposed:
                weights.append(self._weights.take(name, shape[::-1]).T)
            else:
                weights.append(self._weights.take(name, shape))
        return self.plain(weights, bias)

    def quantized(self, name: str, shape: Shape) -> Linear | None:
        """Return the layer of a weight that is quantised, or ``None`` if it is not."""
        matrix = self._quantized(name, shape)
        if matrix is None:
            return None
        if self._ops.computes_quantized:
            return self._of_matrix(matrix, None)
        return self.plain([self._dequantized(matrix)])

    def plain(self, weights: Sequence[Tensor], bias: Tensor | None = None) -> Linear:
        """Return the layer of weights [., I], one below the other."""
        if self._make is not None:
            return self._make(weights, bias)
        numbers = sum(weight.numel() for weight in weights)
        self._count(numbers, numbers * self._dtype.itemsize)
        placed = [weight.to(device=self._device, dtype=self._dtype) for weight in weights]
        return self._ops.stacked(placed, bias)

    def _of_matrix(self, matrix: QuantizedMatrix, bias: Tensor | None) -> Linear:
        self._count(matrix.shape[0] * matrix.shape[1], matrix.num_bytes(SCALE_BYTES))
        return self._ops.quantized(matrix, bias)

    def _quantized(self, name: str, shape: Shape) -> QuantizedMatrix | None:
        """Return a weight that is quantised, or ``None`` if it is taken as numbers."""
        if not self._ops.computes_quantized and self._weights.blocks(name, shape) is not None:
            return None
        return self._weights.quantized(name, shape)

    def _dequantized(self, matrix: QuantizedMatrix) -> Tensor:
        whole = torch.empty(matrix.shape, dtype=self._dtype)
        step = max(1, _DEQUANTIZED // matrix.shape[1])
        for first in range(0, matrix.shape[0], step):
            whole[first : first + step] = matrix.rows(slice(first, first + step)).dequantized()
        return whole

    def _count(self, num_weights: int, num_bytes: int) -> None:
        self._num_weights += num_weights
        self._num_bytes += num_bytes
