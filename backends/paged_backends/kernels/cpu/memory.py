"""Memory that kernels read from front to back: aligned, and on large pages where there are any."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

LINE = 64
"""Bytes of a processor's cache line."""
_PIECE = 1 << 25
"""Bytes asked of the system at a time; what is not written to takes no memory."""


class Arena:
    """Hands out memory, next to what it handed out before; what holds it keeps it.

    A large page takes the place of 512 small ones, and a processor's table of pages has room for a
    few thousand: weights that are read once per step do without it otherwise.
    """

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return ``count`` numbers, zero, that begin at a cache line."""
        size = -(-count * dtype.itemsize // LINE) * LINE
        if size > len(self._left):
            self._left = _mapped(max(size, _PIECE))
        taken, self._left = self._left[:size], self._left[size:]
        return taken.view(dtype)[:count]


def _mapped(size: int) -> Tensor:
    memory = mmap.mmap(-1, size)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):  # a system built without them
            memory.madvise(advice)
    return torch.frombuffer(memory, dtype=torch.uint8)
