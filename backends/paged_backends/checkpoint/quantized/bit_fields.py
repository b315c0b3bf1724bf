"""Codes of 4 or 8 bits in integers of 32 bits, the first in the lowest bits.

Shapes: R rows, W integers of a row, B bytes of a row, C codes of a row.
"""

# ruff: noqa: N803 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

import torch
from torch import Tensor

from paged_backends.quantization.code_pairs import one_by_one


def in_bytes(packed_RW: Tensor) -> Tensor:
    """Return the bytes [R, B] of int32, the lowest first."""
    return packed_RW.contiguous().view(torch.uint8)


def unpacked_rows(packed_RW: Tensor, bits: int) -> Tensor:
    """Return codes [R, C] uint8."""
    return one_by_one(in_bytes(packed_RW)) if bits == 4 else in_bytes(packed_RW)
