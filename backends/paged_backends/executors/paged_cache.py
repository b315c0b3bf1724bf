"""Keys and values of all layers in blocks, on the device and on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from paged_backends.attention.cache import cache_dtype
from paged_backends.executors.accelerator import Accelerator
from paged_backends.executors.cache_group import CacheGroup
from paged_backends.executors.owned_caches import OwnedCaches
from paged_core.interfaces.attention import AttentionBackend, SupportsCacheLayout
from paged_core.interfaces.layer import LayerSpec


class _Part(Protocol):
    layers: list[Any]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...
    def swap_out(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...
    def swap_in(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...


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
        """What the backend binds, layer by layer."""
        self._parts: list[_Part] = []
        for places in _alike(layers, backend):
            members = [layers[place] for place in places]
            counts = {"num_blocks": num_blocks, "num_host_blocks": num_host_blocks}
            part: _Part = (
                OwnedCaches(members, backend, accelerator, **counts)
                if isinstance(backend, SupportsCacheLayout)
                else CacheGroup(members, backend, accelerator, **counts)
            )
            self._parts.append(part)
            for place, bound in zip(places, part.layers, strict=True):
                self.layers[place] = bound

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy device blocks; every source is read before any target is written."""
        if sources:
            for part in self._parts:
                part.copy(sources, targets)

    def swap_out(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy device blocks to host blocks."""
        if sources:
            for part in self._parts:
                part.swap_out(sources, targets)

    def swap_in(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy host blocks to device blocks."""
        if sources:
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
