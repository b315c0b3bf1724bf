"""Blocks that are not cached: their content is lost when their last user leaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal, cast

from paged_core.engine.contexts import AllocatorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.allocator import BlockAllocator
from paged_core.plugins.component import ComponentSettings


class UncachedSettings(ComponentSettings):
    """Options of :class:`UncachedAllocator`."""

    name: Literal["uncached"] = "uncached"


class UncachedAllocator(BlockAllocator):
    """A free list and reference counts, as in the PagedAttention paper (Kwon et al., 2023).

    A block that was freed is allocated before one that never was: its memory is already there, and
    may still be in a cache of the processor.
    """

    def __init__(self, options: UncachedSettings, context: AllocatorContext, /) -> None:
        self._free = deque(cast("Iterable[BlockId]", range(context.num_blocks)))
        self._ref_counts = [0] * context.num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int, /) -> list[BlockId]:
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks are needed and {len(self._free)} are free")
        taken = [self._free.popleft() for _ in range(count)]
        for block in taken:
            self._ref_counts[block] = 1
        return taken

    def share(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            self._ref_counts[block] += 1

    def free(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            self._ref_counts[block] -= 1
            if not self._ref_counts[block]:
                self._free.appendleft(block)

    def ref_count(self, block: BlockId, /) -> int:
        return self._ref_counts[block]
