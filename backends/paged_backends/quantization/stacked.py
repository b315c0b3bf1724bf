"""One matrix of several that multiply the same input: query, key and value, for example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import WeightFormat


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
