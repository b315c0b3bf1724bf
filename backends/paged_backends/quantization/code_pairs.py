"""Codes of 4 bits, two to a byte: the first in the low half.

Shapes: X any number of sides, C codes, Y bytes.
"""

# ruff: noqa: N803 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

import torch
from torch import Tensor


def in_pairs(codes_XC: Tensor) -> Tensor:
    """Return bytes [X, C / 2] of codes, uint8 too, which lie one behind the other."""
    pairs = codes_XC.view(torch.int16)  # the first code in the low byte
    return (pairs | pairs >> 4).to(torch.uint8)  # its low byte


def one_by_one(bytes_XY: Tensor) -> Tensor:
    """Return codes [X, 2 * Y] uint8."""
    return torch.stack((bytes_XY & 15, bytes_XY >> 4), dim=-1).flatten(-2)
