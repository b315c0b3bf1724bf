"""Pinned host buffers of one size, lent to steps and given back when these are done."""

from __future__ import annotations

import torch
from torch import Tensor

from paged_backends.executors.accelerator import Accelerator


class PinnedBuffers:
    """As many buffers as there are steps under way."""

    def __init__(self, accelerator: Accelerator, size: int, dtype: torch.dtype) -> None:
        """``size``: numbers in a buffer."""
        self._accelerator = accelerator
        self._size = size
        self._dtype = dtype
        self._free: list[Tensor] = []

    def take(self) -> Tensor:
        """Return a buffer [size] with undefined content."""
        if not self._free:
            return self._accelerator.pinned((self._size,), self._dtype)
        buffer = self._free.pop()
        self._accelerator.reuse(buffer)
        return buffer

    def give_back(self, buffer: Tensor) -> None:
        """Let another step have it: the work that used it is done."""
        self._free.append(buffer)
