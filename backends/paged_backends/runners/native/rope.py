"""Rotary position embeddings.

Shapes: T tokens, N heads, D head_dim, H half of it.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from paged_backends.runners.native.config import Rope


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Return the angle [H] float32 by which each pair turns from one position to the next.

    ``llama3`` slows down, by ``factor``, the pairs that turn less than ``low_freq_factor`` times
    over the length the model was first trained on, leaves those be that turn more than
    ``high_freq_factor`` times, and blends between them.
    """
    exponents_H = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    own_H = 1.0 / (rope.theta**exponents_H)
    if rope.scaling == "default":
        return own_H
    if rope.scaling == "linear":
        return own_H / rope.factor
    turns_H = rope.original_length * own_H / (2 * pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    share_H = ((turns_H - low) / (high - low)).clamp(0, 1)
    return (1 - share_H) * own_H / rope.factor + share_H * own_H


class Turns:
    """Cosine and sine of every pair's angle at the positions of one batch, [T, H] float32."""

    def __init__(self, frequencies_H: Tensor, positions_T: Tensor) -> None:
        self.rows_T = torch.arange(len(positions_T), device=positions_T.device)
        """[T] int64: the row of each token, which is its own."""
        angles_TH = positions_T.float()[:, None] * frequencies_H
        self.cos_TH = angles_TH.cos()
        self.sin_TH = angles_TH.sin()

    def turn(self, heads_TND: Tensor) -> None:
        """Turn all heads, in place."""
        first, second = heads_TND.chunk(2, dim=-1)
        cos, sin = self.cos_TH[:, None], self.sin_TH[:, None]
        turned = first * cos - second * sin
        second.copy_(second * cos + first * sin)
        first.copy_(turned)
