"""Matrices of linear layers, before and after they are quantised, alone or several as one.

Shapes: X any number of sides, C codes, Y bytes.
"""

# ruff: noqa: N803, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from paged_backends.quantization.weight_format import Shape, WeightFormat


def in_pairs(codes_XC: Tensor) -> Tensor:
    """Return bytes [X, C / 2] of codes, uint8 too, which lie one behind the other."""
    pairs = codes_XC.view(torch.int16)  # the first code in the low byte
    return (pairs | pairs >> 4).to(torch.uint8)  # its low byte


def one_by_one(bytes_XY: Tensor) -> Tensor:
    """Return codes [X, 2 * Y] uint8."""
    return torch.stack((bytes_XY & 15, bytes_XY >> 4), dim=-1).flatten(-2)


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
        """Return whether all scales and offsets are numbers."""
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


def stacked(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """Return the rows of all matrices, one below the other, with the same weights.

    Where their formats differ, all are brought to one that can hold each: as many bits as the
    widest has, groups as small as the smallest, and offsets if any has them.
    """
    first = matrices[0]
    if len(matrices) == 1:
        return first
    formats = [matrix.weight_format for matrix in matrices]
    common = WeightFormat(
        max(each.bits for each in formats), min(each.group_size for each in formats)
    )
    parts = [_in_format(matrix, common) for matrix in matrices]
    offsets = None
    if any(part.offsets_OG is not None for part in parts):
        offsets = _joined(
            [
                torch.zeros_like(part.scales_OG) if part.offsets_OG is None else part.offsets_OG
                for part in parts
            ]
        )
    return QuantizedMatrix(
        common,
        (sum(part.shape[0] for part in parts), first.shape[1]),
        _joined([part.codes_OGY for part in parts]),
        _joined([part.scales_OG for part in parts]),
        offsets,
    )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return all rows, copied in one thread.

    OpenMP's threads wait for each other longer than this takes where other processes use the same
    processors.
    """
    return torch.from_numpy(np.concatenate([part.numpy() for part in parts]))


def _in_format(matrix: QuantizedMatrix, chosen: WeightFormat) -> QuantizedMatrix:
    """Return the same weights with at least as many bits, in groups that are not larger."""
    own = matrix.weight_format
    if own == chosen:
        return matrix
    codes = matrix.codes_OGY
    if own.bits < chosen.bits:
        codes = matrix.codes + (chosen.middle - own.middle)
    parts, groups = own.group_size // chosen.group_size, chosen.num_groups(matrix.shape[1])
    offsets = matrix.offsets_OG
    return replace(
        matrix,
        weight_format=chosen,
        codes_OGY=codes.reshape(len(codes), codes.shape[1] * parts, -1)[:, :groups],
        scales_OG=matrix.scales_OG.repeat_interleave(parts, 1)[:, :groups],
        offsets_OG=None if offsets is None else offsets.repeat_interleave(parts, 1)[:, :groups],
    )
