"""Matrices of linear layers, before and after they are quantised."""

# ruff: noqa: N815 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from paged_backends.quantization.code_pairs import one_by_one
from paged_backends.quantization.weight_format import Shape, WeightFormat

Rows = Sequence[Tensor]
"""A matrix [outputs, inputs] in parts, one below the other: query, key and value, for example."""


def shape_of(rows: Rows) -> Shape:
    """Return the shape of the whole matrix."""
    return sum(len(part) for part in rows), rows[0].shape[1]


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """Codes and scales of one matrix, and offsets where its format has them.

    A weight is ``(code - middle) * scale + offset``, with scale and offset of its group.

    Shapes: O outputs, I inputs, G groups of a row, Y bytes of a group.
    """

    weight_format: WeightFormat
    shape: Shape
    codes_OGY: Tensor
    """uint8."""
    scales_OG: Tensor
    """float32."""
    offsets_OG: Tensor | None = None
    """float32; ``None``: all are 0."""

    @property
    def codes(self) -> Tensor:
        """Codes [O, G, S] uint8, each in a byte; S is the size of a group."""
        return one_by_one(self.codes_OGY) if self.weight_format.bits == 4 else self.codes_OGY

    def num_bytes(self, scale_bytes: int) -> int:
        """Return what codes, scales and offsets take, with so many bytes for each of the latter."""
        scaled = (self.scales_OG, self.offsets_OG)
        scales = sum(each.numel() for each in scaled if each is not None)
        return self.codes_OGY.numel() + scale_bytes * scales

    @property
    def is_finite(self) -> bool:
        """Whether all scales and offsets are numbers."""
        scaled = (self.scales_OG, self.offsets_OG)
        # by their sum, which is one pass in one thread, and in float64 never too large
        with np.errstate(invalid="ignore"):
            sums = [np.sum(each.numpy(), dtype=np.float64) for each in scaled if each is not None]
        return all(map(math.isfinite, sums))

    def rows(self, chosen: slice) -> QuantizedMatrix:
        """Return some outputs, as views."""
        scales, offsets = self.scales_OG[chosen], self.offsets_OG
        return QuantizedMatrix(
            self.weight_format,
            (len(scales), self.shape[1]),
            self.codes_OGY[chosen],
            scales,
            None if offsets is None else offsets[chosen],
        )

    def dequantized(self) -> Tensor:
        """Return the matrix [O, I] float32 that the codes stand for."""
        values = (self.codes.float() - self.weight_format.middle) * self.scales_OG[..., None]
        if self.offsets_OG is not None:
            values += self.offsets_OG[..., None]
        return values.flatten(1)[:, : self.shape[1]]


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """The quantised matrices of a model, in memory or in a mapped file; only to be read."""

    matrices: Sequence[QuantizedMatrix]
    release: Callable[[], None] = lambda: None
    """Release the memory of a mapped file; it is read again if a matrix is used again."""
