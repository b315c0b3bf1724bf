"""Keys and values of all layers in blocks, on the device and on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paged_backends.attention.cache_layout import layout_of
from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.layer import LayerSpec


class PagedCache:
    """One cache per layer, in the layout of the attention backend; whole blocks are copied."""

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        backend: AttentionBackend,
        *,
        num_blocks: int,
        num_host_blocks: int,
    ) -> None:
        self._layout = layout_of(backend)
        self.layers = [
            self._layout.allocate_cache(layer, num_blocks, layer.device) for layer in layers
        ]
        """What the backend binds, layer by layer."""
        self._host = [
            self._layout.allocate_cache(layer, num_host_blocks, "cpu")
            for layer in layers
            if num_host_blocks
        ]

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
        if sources:
            for source, target in zip(read, write, strict=True):
                self._layout.copy_blocks(source, sources, target, targets)
