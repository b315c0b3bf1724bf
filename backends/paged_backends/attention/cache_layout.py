"""How the cache of a layer is stored, and how its blocks are copied."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from paged_backends.attention.transfer import to_device
from paged_core.interfaces.attention import AttentionBackend, SupportsCacheLayout
from paged_core.interfaces.layer import LayerSpec


def layout_of(backend: AttentionBackend) -> SupportsCacheLayout:
    """Return the layout of the backend's cache: its own, or a tensor of its ``cache_shape``."""
    return backend if isinstance(backend, SupportsCacheLayout) else TensorLayout(backend)


class TensorLayout:
    """The default layout: one tensor of the layer's dtype, or of bytes, in the shape that
    the backend names."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend

    def block_bytes(self, layer: LayerSpec, /) -> int:
        """Bytes that one block of ``layer`` takes."""
        return prod(self._backend.cache_shape(layer, 1)) * cache_dtype(layer).itemsize

    def allocate_cache(self, layer: LayerSpec, num_blocks: int, device: str, /) -> Tensor:
        """Return zeros; on a CPU they take memory once they are written to."""
        return zeros(self._backend.cache_shape(layer, num_blocks), cache_dtype(layer), device)

    def copy_blocks(
        self, source: Tensor, origins: Sequence[int], target: Tensor, destinations: Sequence[int], /
    ) -> None:
        """Copy blocks of ``source`` to blocks of ``target``; all are read before any is written."""
        dim = self._backend.block_dim()
        blocks = source.index_select(dim, to_device(np.array(origins), source.device))
        target.index_copy_(
            dim, to_device(np.array(destinations), target.device), blocks.to(target.device)
        )


def zeros(shape: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
    """Return zeros; on a CPU they take memory once they are written to."""
    if device != "cpu" or not prod(shape):
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    # unlike torch, numpy asks the system for zeros, which are mapped on first use
    mapped = np.zeros(prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(mapped).view(dtype).view(tuple(shape))


def cache_dtype(layer: LayerSpec) -> torch.dtype:
    """Return the dtype of the layer's cache where its shape is ``cache_shape``."""
    if layer.kv_cache_dtype != "auto":
        return torch.uint8
    dtype: torch.dtype = getattr(torch, layer.dtype)
    return dtype
