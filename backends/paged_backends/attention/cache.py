"""The cache of a layer: how it is stored, how its blocks are copied, how tokens are written.

A cache that is read head by head has all of a block's tokens of one head together. A block holds
first its keys, then its values, of each key/value head ``block_size`` rows of ``head_dim`` numbers.
In float8 the numbers of a head are bytes, row by row, and the scale bytes of its rows follow, one
each (see :mod:`~paged_backends.attention.float8`), padded to a multiple of 16 bytes so that the
next head begins where a wide load may.

Shapes: T tokens in the batch, B blocks, P tokens in each, K key/value heads, D head_dim; X is 2,
for keys and values.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from paged_backends.device import to_device
from paged_core.interfaces.attention import AttentionBackend, SupportsCacheLayout
from paged_core.interfaces.layer import LayerSpec

_ALIGNMENT = 16


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


def check_contiguous(cache: Tensor) -> None:
    """Raise ValueError if a cache is not contiguous."""
    if not cache.is_contiguous():
        raise ValueError(f"the cache must be contiguous, and its strides are {cache.stride()}")


def head_major_shape(layer: LayerSpec, num_blocks: int) -> tuple[int, ...]:
    """Return ``(num_blocks, 2, num_kv_heads, block_size, head_dim)``, of the layer's dtype, or in
    float8 ``(num_blocks, 2, num_kv_heads, bytes of a head)``, of bytes."""
    heads = (num_blocks, 2, layer.num_kv_heads)
    if layer.kv_cache_dtype == "auto":
        return (*heads, layer.block_size, layer.head_dim)
    scale_bytes = -(-layer.block_size // _ALIGNMENT) * _ALIGNMENT
    return (*heads, layer.block_size * layer.head_dim + scale_bytes)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the tokens of a batch go in blocks of one size."""

    block_T: Tensor
    offset_T: Tensor
    source_T: Tensor
    """Which token is written there: a row without a slot repeats one that has a slot."""
    any_slot: Tensor
    """[] bool: whether any row has a slot."""


class SlotWrites:
    """The writes of one step's layers into caches whose heads come before the tokens of a block.

    They wait for nothing and can be captured in a CUDA graph.

    Args:
        slots_T: int64.
        may_be_empty: whether slots may be -1, where nothing is written. Such a row repeats the
            write of another row, or, if there is none, writes what is there already.
    """

    def __init__(self, slots_T: Tensor, *, may_be_empty: bool = False) -> None:
        self._slots_T = slots_T
        self._may_be_empty = may_be_empty
        self._places: dict[int, Places] = {}

    def write(self, cache_BXKPD: Tensor, key_TKD: Tensor, value_TKD: Tensor) -> None:
        """Write the keys and values of the whole batch."""
        size = cache_BXKPD.shape[3]
        if size not in self._places:
            self._places[size] = self._find(size)
        places = self._places[size]
        cells_BPXKD = cache_BXKPD.permute(0, 3, 1, 2, 4)
        at = (places.block_T, places.offset_T)
        rows_TXKD = torch.stack((key_TKD, value_TKD), 1).to(cache_BXKPD.dtype)
        if self._may_be_empty:
            rows_TXKD = rows_TXKD.index_select(0, places.source_T)
            rows_TXKD = torch.where(places.any_slot, rows_TXKD, cells_BPXKD[at])
        cells_BPXKD.index_put_(at, rows_TXKD)

    def refresh(self) -> None:
        """Take over other numbers in the slots, in the tensors that a graph has captured."""
        for size, places in self._places.items():
            for old, new in zip(_tensors(places), _tensors(self._find(size)), strict=True):
                old.copy_(new)

    def _find(self, size: int) -> Places:
        slots_T = self._slots_T
        rows_T = torch.arange(len(slots_T), device=slots_T.device)
        has_slot_T = slots_T >= 0
        if self._may_be_empty:
            rows_T = torch.where(has_slot_T, rows_T, has_slot_T.int().argmax())
            slots_T = slots_T.index_select(0, rows_T).clamp(min=0)
        return Places(
            slots_T.div(size, rounding_mode="floor"), slots_T % size, rows_T, has_slot_T.any()
        )


def _tensors(places: Places) -> tuple[Tensor, ...]:
    return (places.block_T, places.offset_T, places.source_T, places.any_slot)
