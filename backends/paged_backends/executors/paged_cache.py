"""Keys and values of all layers in blocks, on the device and on the host."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.layer import LayerSpec

_LINE = 64
"""Bytes of a processor's cache line, at which a layer's cache begins."""


class PagedCache:
    """One tensor per layer, shaped as the attention backend asks; moves whole blocks."""

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        backend: AttentionBackend,
        *,
        num_blocks: int,
        num_host_blocks: int,
    ) -> None:
        self._dim = backend.block_dim()
        self.layers = [_tensor(layer, backend, num_blocks, layer.device) for layer in layers]
        self._host = (
            [_tensor(layer, backend, num_host_blocks, "cpu") for layer in layers]
            if num_host_blocks
            else []
        )

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy device blocks; every source is read before any target is written."""
        if sources:
            self._move(self.layers, sources, self.layers, targets)

    def swap_out(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy device blocks to host blocks."""
        if sources:
            self._move(self.layers, sources, self._host, targets)

    def swap_in(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy host blocks to device blocks."""
        if sources:
            self._move(self._host, sources, self.layers, targets)

    def _move(
        self,
        read: Sequence[Tensor],
        sources: Sequence[int],
        write: Sequence[Tensor],
        targets: Sequence[int],
    ) -> None:
        origin = torch.tensor(sources, device=read[0].device)
        destination = torch.tensor(targets, device=write[0].device)
        for source, target in zip(read, write, strict=True):
            blocks = source.index_select(self._dim, origin).to(target.device)
            target.index_copy_(self._dim, destination, blocks)


def _tensor(layer: LayerSpec, backend: AttentionBackend, num_blocks: int, device: str) -> Tensor:
    shape = backend.cache_shape(layer, num_blocks)
    dtype = getattr(torch, layer.dtype)
    if device != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy asks the system for zeros, which take memory only once they are written to
    return (
        torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
    )
