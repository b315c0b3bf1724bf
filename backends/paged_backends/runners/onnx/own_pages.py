"""Weights whose memory goes back to the system as soon as they are dropped.

Between what sessions allocate, the allocator of the C library would keep it for later copies: a
third of the weights' size in the end.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


def in_own_pages(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return matrices of equal width in ``dtype`` and contiguous, one below the other.

    One that is so already is returned itself, and otherwise a copy.
    """
    if len(parts) == 1 and parts[0].dtype == dtype and parts[0].is_contiguous():
        return parts[0]
    stacked = own_pages((sum(len(part) for part in parts), parts[0].shape[1]), dtype)
    for part, rows in zip(parts, torch.split(stacked, [len(part) for part in parts]), strict=True):
        rows.copy_(part)
    return stacked


def own_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros."""
    pages = mmap.mmap(-1, prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(*shape)
