"""Copies of whole blocks, of all layers in one launch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paged_backends.attention.transfer import to_device
from paged_backends.kernels.cuda.kernel import KernelModule
from paged_backends.kernels.cuda.structs import Argument, BlockCopies
from paged_backends.kernels.cuda.variant import COPY_BLOCKS


class BlockCopier:
    """Copies blocks of several caches at once. A GPU reads and writes pinned memory of the host as
    well, so that this also swaps."""

    def __init__(self, module: KernelModule, device: torch.device) -> None:
        """
        Raises:
            KernelError: the module has no kernel for it.
        """
        self._module = module
        self._device = device
        self._kernel = module.kernel(COPY_BLOCKS, ctypes.sizeof(BlockCopies))

    def copy(
        self,
        sources: Sequence[Tensor],
        origins: Sequence[int],
        targets: Sequence[Tensor],
        destinations: Sequence[int],
    ) -> None:
        """Copy blocks ``origins`` of each source to blocks ``destinations`` of its target, without
        waiting; all are read before any is written.

        Args:
            sources: caches whose first dimension counts blocks, each block contiguous.
            targets: one for each source, or the source itself.

        Raises:
            ValueError: a block is not there, or a block of a source and of its target differ.
        """
        _check(sources, origins)
        _check(targets, destinations)
        if not origins or not sources:
            return
        both = zip(sources, targets, strict=True)
        within = any(one.data_ptr() == other.data_ptr() for one, other in both)
        if within and not set(origins).isdisjoint(destinations):
            held = [one.new_empty((len(origins), *one.shape[1:])) for one in targets]
            places = range(len(origins))
            self._launch(sources, origins, held, places)
            self._launch(held, places, targets, destinations)
        else:
            self._launch(sources, origins, targets, destinations)

    def _launch(
        self,
        sources: Sequence[Tensor],
        origins: Sequence[int],
        targets: Sequence[Tensor],
        destinations: Sequence[int],
    ) -> None:
        count = len(sources)
        sizes = [one[0].numel() * one.element_size() for one in sources]
        if sizes != [one[0].numel() * one.element_size() for one in targets]:
            raise ValueError("a block of a source and of its target have different sizes")
        addresses = [one.data_ptr() for one in (*sources, *targets)]
        pairs = np.array([origins, destinations]).T.ravel()
        numbers = to_device(np.array([*addresses, *sizes, *pairs], np.int64), self._device)
        base = numbers.data_ptr()
        copies = BlockCopies(
            sources=base,
            targets=base + 8 * count,
            block_bytes=base + 16 * count,
            pairs=base + 24 * count,
            num_caches=count,
            num_pairs=len(origins),
        )
        if self._module.declares:
            named = {f"source {place}": one for place, one in enumerate(sources)}
            named |= {f"target {place}": one for place, one in enumerate(targets)}
            self._module.declare({**named, "numbers": numbers})
        grid = (len(origins), count, 1)
        self._kernel.launch(grid, Argument(copies), self._module.stream())


def _check(caches: Sequence[Tensor], blocks: Sequence[int]) -> None:
    for cache in caches:
        if not cache.is_contiguous():
            raise ValueError(f"the cache must be contiguous, and its strides are {cache.stride()}")
        if blocks and not 0 <= min(blocks) <= max(blocks) < len(cache):
            raise ValueError(f"blocks {list(blocks)} are copied, and the cache has {len(cache)}")
