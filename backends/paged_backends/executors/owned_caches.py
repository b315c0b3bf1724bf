"""The caches of a backend that allocates and copies them itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paged_backends.executors.accelerator import Accelerator
from paged_backends.executors.page_populator import BlockMemory
from paged_core.interfaces.attention import SupportsCacheLayout
from paged_core.interfaces.layer import LayerSpec


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
        """What the backend binds."""
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
