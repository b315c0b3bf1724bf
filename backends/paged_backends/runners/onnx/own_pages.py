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


def in_own_pages(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``tensor`` in ``dtype`` and contiguous: itself, if it is so, or else a copy."""
    if tensor.dtype == dtype and tensor.is_contiguous():
        return tensor
    return _empty(tensor.shape, dtype).copy_(tensor)


def joined_in_own_pages(weights: Sequence[Tensor]) -> Tensor:
    """Return matrices of equal width, one below the other."""
    shape = (sum(len(weight) for weight in weights), weights[0].shape[1])
    return torch.cat(list(weights), out=_empty(shape, weights[0].dtype))


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    pages = mmap.mmap(-1, prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(*shape)
