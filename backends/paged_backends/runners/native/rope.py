"""Rotary position embeddings.

Shapes: T tokens, H heads, D head_dim, F rotated pairs of a head: half of D.
"""

# ruff: noqa: N802, N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import pi
from typing import Self

import torch
from torch import Tensor

from paged_backends.runners.native.config import Rope


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Return the frequency of each pair, [F] float32: its angle per position.

    ``linear`` divides all by ``factor``, ``divided`` each by its own divisor, as GGUF files store
    them. ``llama3`` divides by ``factor`` the frequencies of pairs that complete less than
    ``low_freq_factor`` rotations over the original length of the model, leaves those of pairs that
    complete more than ``high_freq_factor``, and interpolates between them.
    """
    exponents_F = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base_F = 1.0 / (rope.theta**exponents_F)
    if rope.scaling == "default":
        return base_F
    if rope.scaling == "linear":
        return base_F / rope.factor
    if rope.scaling == "divided":
        return base_F / torch.tensor(rope.divisors)
    rotations_F = rope.original_length * base_F / (2 * pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    blend_F = ((rotations_F - low) / (high - low)).clamp(0, 1)
    return (1 - blend_F) * base_F / rope.factor + blend_F * base_F


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines of a batch's rotary embedding: of each pair's angle at each position."""

    cos_TF: Tensor
    """float32."""
    sin_TF: Tensor

    @classmethod
    def at(cls, positions_T: Tensor, frequencies_F: Tensor) -> Self:
        """Return the rotary embedding of tokens at these positions."""
        angles_TF = positions_T.float()[:, None] * frequencies_F
        return cls(angles_TF.cos(), angles_TF.sin())

    @cached_property
    def rows_T(self) -> Tensor:
        """[T] int64: each token's row of the tables."""
        return torch.arange(len(self.cos_TF), device=self.cos_TF.device)

    def rotate(self, heads_THD: Tensor) -> None:
        """Rotate all heads, in place."""
        first, second = heads_THD.chunk(2, dim=-1)
        cos, sin = self.cos_TF[:, None], self.sin_TF[:, None]
        rotated = first * cos - second * sin
        second.copy_(second * cos + first * sin)
        first.copy_(rotated)
