"""Memory that kernels read sequentially: aligned, and on huge pages where the system has them."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

LINE = 64
"""Bytes of a processor's cache line."""
_PIECE = 1 << 25
"""Bytes mapped at a time; pages that are never written take no memory."""


class Arena:
    """Allocates consecutive memory; a mapping lives as long as any tensor of it.

    A huge page replaces 512 small ones, and a processor's TLB holds a few thousand entries: weights
    that are read once per step would miss it on every page.
    """

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return ``count`` zeros that begin at a cache line."""
        size = -(-count * dtype.itemsize // LINE) * LINE
        if size > len(self._left):
            self._left = _mapped(max(size, _PIECE))
        taken, self._left = self._left[:size], self._left[size:]
        return taken.view(dtype)[:count]


def _mapped(size: int) -> Tensor:
    # private: a forked process has its own copy of what it writes
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):  # a system built without them
            memory.madvise(advice)
    return torch.frombuffer(memory, dtype=torch.uint8)
