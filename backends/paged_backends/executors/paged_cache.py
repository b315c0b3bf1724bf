"""Keys and values of all layers in blocks, on device and host, and the model over them.

Layers whose caches are alike are in one allocation: all of them are copied in one call. A backend
may also allocate and copy the caches itself.

Shapes: L layers, N blocks, T tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paged_backends.attention.cache import cache_dtype, zeros
from paged_backends.executors.accelerator import Accelerator
from paged_backends.executors.page_populator import BlockMemory
from paged_core.interfaces.attention import (
    AttentionBackend,
    SupportsBlockCopies,
    SupportsCacheLayout,
)
from paged_core.interfaces.layer import LayerSpec

_MAX_BLOCKS = 64
"""Blocks swapped in one piece: bounds the memory of the device that a swap takes."""


class CacheGroup:
    """The cache of layers with the same shape and dtype, on the device and on the host.

    A swap gathers the blocks of all layers on the device, so that a block may be written anew as
    soon as it is gathered, and one of the host is a single piece of memory.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        backend: AttentionBackend,
        accelerator: Accelerator,
        *,
        num_blocks: int,
        num_host_blocks: int,
    ) -> None:
        shape, dtype = backend.cache_shape(layers[0], num_blocks), cache_dtype(layers[0])
        cache = zeros((len(layers), *shape), dtype, layers[0].device)
        self.layers = list(cache.unbind(0))
        """Caches that the backend binds."""
        self.memories = [BlockMemory(cache, 1 + backend.block_dim())]
        """Where its blocks are."""
        self._blocks = cache.movedim(1 + backend.block_dim(), 0)
        """[N, L, ...]."""
        host_shape = (num_host_blocks, *self._blocks.shape[1:])
        self._host = (
            accelerator.pinned(host_shape, dtype)
            if accelerator.runs_ahead
            else zeros(host_shape, dtype, "cpu")
        )
        self._accelerator = accelerator
        self._copier: SupportsBlockCopies | None = None
        if isinstance(backend, SupportsBlockCopies) and backend.block_dim() == 0:
            self._copier = backend
        self._cache = cache

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy device blocks; every source is read before any target is written."""
        accelerator, copier = self._accelerator, self._copier
        if copier is not None:
            accelerator.compute.launch(
                lambda: copier.copy_blocks_of_layers(self._cache, sources, targets)
            )
            return
        origins, destinations = (
            accelerator.upload(np.array(ids, np.int64)) for ids in (sources, targets)
        )

        def work() -> None:
            self._blocks.index_copy_(0, destinations, self._blocks.index_select(0, origins))

        accelerator.compute.launch(work)

    def swap_out(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy device blocks to host blocks; later work may write to the device blocks."""
        compute, transfers = self._accelerator.compute, self._accelerator.transfers
        for piece in _pieces(len(sources)):
            origins = self._accelerator.upload(np.array(sources[piece], np.int64))
            gathered = compute.empty((len(origins), *self._blocks.shape[1:]), self._host.dtype)
            compute.launch(partial(_gather, self._blocks, origins, gathered))
            transfers.follow(compute.record())
            transfers.launch(partial(_to_host, gathered, self._host, targets[piece]))
            transfers.borrow(gathered)

    def swap_in(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy host blocks to device blocks; later work finds them there."""
        compute, transfers = self._accelerator.compute, self._accelerator.transfers
        for piece in _pieces(len(sources)):
            destinations = self._accelerator.upload(np.array(targets[piece], np.int64))
            arrived = transfers.empty(
                (len(destinations), *self._blocks.shape[1:]), self._host.dtype
            )
            transfers.launch(partial(_from_host, self._host, sources[piece], arrived))
            compute.follow(transfers.record())
            compute.launch(partial(_scatter, arrived, destinations, self._blocks))
            compute.borrow(arrived)


def _pieces(count: int) -> Iterator[slice]:
    for start in range(0, count, _MAX_BLOCKS):
        yield slice(start, min(start + _MAX_BLOCKS, count))


def _gather(blocks: Tensor, ids: Tensor, gathered: Tensor) -> None:
    torch.index_select(blocks, 0, ids, out=gathered)


def _scatter(arrived: Tensor, ids: Tensor, blocks: Tensor) -> None:
    blocks.index_copy_(0, ids, arrived)


def _to_host(gathered: Tensor, host: Tensor, ids: Sequence[int]) -> None:
    for begin, end, first in _runs(ids):
        host[first : first + end - begin].copy_(gathered[begin:end], non_blocking=True)


def _from_host(host: Tensor, ids: Sequence[int], arrived: Tensor) -> None:
    for begin, end, first in _runs(ids):
        arrived[begin:end].copy_(host[first : first + end - begin], non_blocking=True)


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield ``(begin, end, first)``: places whose ids follow one another, from ``first``."""
    begin = 0
    for place in range(1, len(ids) + 1):
        if place == len(ids) or ids[place] != ids[place - 1] + 1:
            yield begin, place, ids[begin]
            begin = place


class OwnedCaches:
    """One cache per layer, on the device and on the host, copied layer by layer."""

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        layout: SupportsCacheLayout,
        accelerator: Accelerator,
        *,
        num_blocks: int,
        num_host_blocks: int,
    ) -> None:
        self.layers = [layout.allocate_cache(layer, num_blocks, layer.device) for layer in layers]
        """Caches that the backend binds."""
        self.memories: list[BlockMemory] = []
        """Only the backend knows where its blocks are."""
        self._host = [
            layout.allocate_cache(layer, num_host_blocks, "cpu")
            for layer in layers
            if num_host_blocks
        ]
        self._layout = layout
        self._accelerator = accelerator

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy device blocks; every source is read before any target is written."""
        self._copy(self.layers, sources, self.layers, targets)

    def swap_out(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy device blocks to host blocks."""
        self._copy(self.layers, sources, self._host, targets)

    def swap_in(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy host blocks to device blocks."""
        self._copy(self._host, sources, self.layers, targets)

    def _copy(
        self,
        read: Sequence[Any],
        sources: Sequence[int],
        write: Sequence[Any],
        targets: Sequence[int],
    ) -> None:
        def work() -> None:
            for source, target in zip(read, write, strict=True):
                self._layout.copy_blocks(source, sources, target, targets)

        self._accelerator.compute.launch(work)


class PagedCache:
    """One cache per layer, in the layout of the attention backend; whole blocks are copied.

    Copies are launched: what is launched on :attr:`Accelerator.compute` later finds them done.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        backend: AttentionBackend,
        accelerator: Accelerator,
        *,
        num_blocks: int,
        num_host_blocks: int,
    ) -> None:
        self.layers: list[Any] = [None] * len(layers)
        """Caches that the backend binds, layer by layer."""
        self._parts: list[CacheGroup | OwnedCaches] = []
        for places in _alike(layers, backend):
            members = [layers[place] for place in places]
            counts = {"num_blocks": num_blocks, "num_host_blocks": num_host_blocks}
            part = (
                OwnedCaches(members, backend, accelerator, **counts)
                if isinstance(backend, SupportsCacheLayout)
                else CacheGroup(members, backend, accelerator, **counts)
            )
            self._parts.append(part)
            for place, bound in zip(places, part.layers, strict=True):
                self.layers[place] = bound

    @property
    def memories(self) -> list[BlockMemory]:
        """Where the blocks of the device are, but for caches that a backend allocates itself."""
        return [memory for part in self._parts for memory in part.memories]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy device blocks; every source is read before any target is written."""
        for part in self._parts:
            part.copy(sources, targets)

    def swap_out(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy device blocks to host blocks."""
        for part in self._parts:
            part.swap_out(sources, targets)

    def swap_in(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy host blocks to device blocks."""
        for part in self._parts:
            part.swap_in(sources, targets)


def _alike(layers: Sequence[LayerSpec], backend: AttentionBackend) -> list[list[int]]:
    """Return the places of the layers whose caches have one shape, dtype and device."""
    if isinstance(backend, SupportsCacheLayout):
        return [list(range(len(layers)))]
    groups: dict[Any, list[int]] = {}
    for place, layer in enumerate(layers):
        key = (backend.cache_shape(layer, 1), cache_dtype(layer), layer.device)
        groups.setdefault(key, []).append(place)
    return list(groups.values())
