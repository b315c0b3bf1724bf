"""Linear layers, made of weights in the form in which a source has them, or still stored there.

Shapes: T tokens, O outputs, I inputs.
"""

# ruff: noqa: N803, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.checkpoint.tensor_files import WHOLE, Part
from paged_backends.quantization.matrix import QuantizedMatrix, Rows, stacked
from paged_backends.quantization.weight_format import Shape
from paged_backends.runners.native.decoder import (
    Embedding,
    Head,
    Layer,
    Linear,
    SummedLinear,
    added,
)
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.native.source import ModelSource

SCALE_BYTES = 2
"""Bytes of a scale, or of an offset, in the packed weights of the kernels."""
_DEQUANTIZED = 1 << 22
"""Weights that are in float32 at a time."""

MakeLinear = Callable[[Sequence[Tensor], Tensor | None], Linear]
"""Makes a linear layer of weights [., I], one below the other, and a bias [O]."""


class LinearMaker:
    """Makes one linear layer after another, and counts what their weights take.

    Args:
        source: their weights, and the dtype and the device that they are computed with.
        ops: make the layers, of plain weights or of quantised ones.
        make: makes layers instead, of weights as they are stored.
    """

    def __init__(self, source: ModelSource, ops: Ops, make: MakeLinear | None) -> None:
        self._weights = source.weights
        self._dtype, self._device = source.dtype, source.device
        self._ops = ops
        self._make = make
        self._num_weights = self._num_bytes = 0

    @property
    def bytes_per_weight(self) -> float:
        """Bytes of a weight of the layers that were made, on average."""
        return self._num_bytes / self._num_weights

    def stored(
        self,
        names: Sequence[str],
        shapes: Sequence[Shape],
        parts: Sequence[Part],
        bias: Tensor | None,
        *,
        transposed: bool,
    ) -> Linear:
        """Return one layer in place of several that have the same input.

        It stays quantised if all of them are; otherwise those that are quantised are dequantised.

        Args:
            names: of the weights.
            shapes: outputs and inputs of whole weights.
            parts: of each weight, what the layer has.
            bias: [O], of all outputs together.
            transposed: those that are not quantised are stored as [I, O].
        """
        matrices = [self._quantized(*each) for each in zip(names, shapes, parts, strict=True)]
        found = [matrix for matrix in matrices if matrix is not None]
        if len(found) == len(names) and self._ops.computes_quantized:
            return self._of_matrix(stacked(found), bias)
        weights = []
        for name, shape, part, matrix in zip(names, shapes, parts, matrices, strict=True):
            if matrix is not None:
                weights.append(self._dequantized(matrix))
            elif transposed:
                weights.append(self._weights.take(name, shape[::-1], part.transposed).T)
            else:
                weights.append(self._weights.take(name, shape, part))
        return self.plain(weights, bias)

    def quantized(self, name: str, shape: Shape, part: Part = WHOLE) -> Linear | None:
        """Return the layer of a weight that is quantised, or ``None`` if it is not."""
        matrix = self._quantized(name, shape, part)
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

    def _quantized(self, name: str, shape: Shape, part: Part) -> QuantizedMatrix | None:
        """Return a weight that is quantised, or ``None`` if it is taken as numbers."""
        if not self._ops.computes_quantized and self._weights.blocks(name, shape) is not None:
            return None
        return self._weights.quantized(name, shape, part)

    def _dequantized(self, matrix: QuantizedMatrix) -> Tensor:
        whole = torch.empty(matrix.shape, dtype=self._dtype)
        step = max(1, _DEQUANTIZED // matrix.shape[1])
        for first in range(0, matrix.shape[0], step):
            whole[first : first + step] = matrix.rows(slice(first, first + step)).dequantized()
        return whole

    def _count(self, num_weights: int, num_bytes: int) -> None:
        self._num_weights += num_weights
        self._num_bytes += num_bytes


# ---------------------------------------------------------------------- stored weights


@dataclass(frozen=True, slots=True, eq=False)
class StoredLinear:
    """A linear layer over I inputs and O outputs; its weight is not read before it is asked for."""

    rows: Rows
    """Parts of the weight, one below the other, in the dtype in which they are stored."""
    bias_O: Tensor | None

    @property
    def weight(self) -> Tensor:
        """The whole weight [O, I], stacked anew each time."""
        return torch.cat(list(self.rows)) if len(self.rows) > 1 else self.rows[0]

    def __call__(self, rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        return added(functional.linear(rows_TI, self.weight, self.bias_O), residual_TO)


Convert = Callable[[StoredLinear], Linear]
"""Makes a linear layer that is computed with out of one that is stored."""


def stored(linear: object) -> StoredLinear:
    """Return a layer, or this rank's product of one that is summed, as what it was made as."""
    if isinstance(linear, SummedLinear):
        linear = linear.product
    assert isinstance(linear, StoredLinear), linear
    return linear


def stored_linears(head: Head, layers: Iterable[Layer]) -> Iterator[StoredLinear]:
    """Yield the linear layers of a head, then those of layers, in the order of their use."""
    projects = [] if head.project is None else [head.project]
    for linear in (*projects, head.output):
        yield stored(linear)
    for layer in layers:
        attention, mlp = layer.attention, layer.mlp
        for linear in (attention.query_key_value, attention.output, mlp.up, mlp.down):
            yield stored(linear)


def _converted(linear: Linear, convert: Convert) -> Linear:
    made = convert(stored(linear))
    return replace(linear, product=made) if isinstance(linear, SummedLinear) else made


def converted_embedding(embedding: Embedding, convert: Convert) -> Embedding:
    """Return an embedding with another linear layer in place of one that is stored."""
    project = None if embedding.project is None else convert(stored(embedding.project))
    return replace(embedding, project=project)


def converted_head(head: Head, convert: Convert) -> Head:
    """Return a head with other linear layers in place of those that are stored."""
    project = None if head.project is None else convert(stored(head.project))
    return replace(head, project=project, output=convert(stored(head.output)))


def converted_layer(layer: Layer, convert: Convert) -> Layer:
    """Return a layer with other linear layers in place of those that are stored."""
    attention, mlp = layer.attention, layer.mlp
    return replace(
        layer,
        attention=replace(
            attention,
            query_key_value=convert(stored(attention.query_key_value)),
            output=_converted(attention.output, convert),
        ),
        mlp=replace(mlp, up=convert(stored(mlp.up)), down=_converted(mlp.down, convert)),
    )
