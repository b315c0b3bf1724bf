"""A buddy allocator, with which the PagedAttention paper assumes that Orca places its requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from paged_core.engine.contexts import AllocatorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.allocator import BlockAllocator
from paged_core.plugins.component import Component, ComponentSettings


class BuddySettings(ComponentSettings):
    """Options of :class:`BuddyAllocator`."""

    name: Literal["buddy"] = "buddy"
    reserve: Literal["max", "pow2", "oracle"] = Field(
        default="max",
        description="for max_model_len tokens, for the prompt and the next power of two of the "
        "output, or for the prompt and the output as they will be",
    )


@dataclass(slots=True)
class _Region:
    """A region that is in use."""

    start: int
    order: int
    """Logarithm of its size."""
    num_held: int
    """Blocks of it that are referenced."""


class BuddyAllocator(BlockAllocator):
    """One run of blocks for a sequence's whole life, in a region of a power of two of blocks.

    Knowlton, "A fast storage allocator", CACM 1965. A region lies at a multiple of its size; it is
    halved until it just fits, and joined with its other half as soon as both are free. The three
    reservations are those of section 6.1 of Kwon et al., SOSP 2023.
    """

    def __init__(self, options: BuddySettings, context: AllocatorContext, /) -> None:
        self._reserve = options.reserve
        self._block_size = context.block_size
        self._max_model_len = context.max_model_len
        self._num_free = 0
        self._ref_counts = [0] * context.num_blocks
        self._free: list[set[int]] = [set() for _ in range(context.num_blocks.bit_length())]
        """Where free regions start, by the logarithm of their size."""
        self._regions: dict[BlockId, _Region] = {}
        """By block."""
        start = 0
        for order in reversed(range(len(self._free))):
            if context.num_blocks - start >= 1 << order:
                self._release(start, order)
                start += 1 << order

    @property
    def num_free(self) -> int:
        return self._num_free

    def blocks_to_reserve(self, num_tokens: int, max_num_tokens: int, /) -> int:
        longest = max(num_tokens, max_num_tokens)
        if self._reserve == "max":
            longest = max(num_tokens, self._max_model_len)
        elif self._reserve == "pow2" and longest > num_tokens:
            longest = num_tokens + (1 << (longest - num_tokens - 1).bit_length())
            longest = max(num_tokens, min(longest, self._max_model_len))
        count = -(-longest // self._block_size)
        return 1 << (count - 1).bit_length()

    def can_reserve(self, count: int, /) -> bool:
        return any(self._free[(count - 1).bit_length() :])

    def reserve(self, count: int, /) -> list[BlockId]:
        wanted = (count - 1).bit_length()
        fitting = [order for order in range(wanted, len(self._free)) if self._free[order]]
        if not fitting:
            raise OutOfBlocks(f"no region of {1 << wanted} blocks is free")
        order = fitting[0]
        start = min(self._free[order])
        self._free[order].remove(start)
        while order > wanted:
            order -= 1
            self._free[order].add(start + (1 << order))
        self._num_free -= 1 << wanted
        blocks = [BlockId(block) for block in range(start, start + count)]
        region = _Region(start, wanted, count)
        self._regions.update((block, region) for block in blocks)
        self.share(blocks)
        return blocks

    def allocate(self, count: int, /) -> list[BlockId]:
        if count > self._num_free:
            raise OutOfBlocks(f"{count} blocks are needed and {self._num_free} are free")
        return [block for _ in range(count) for block in self.reserve(1)]

    def share(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            self._ref_counts[block] += 1

    def free(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            self._ref_counts[block] -= 1
            if not self._ref_counts[block]:
                region = self._regions.pop(block)
                region.num_held -= 1
                if not region.num_held:
                    self._release(region.start, region.order)

    def ref_count(self, block: BlockId, /) -> int:
        return self._ref_counts[block]

    def _release(self, start: int, order: int) -> None:
        """Make a region free, joined with its buddies as far as those are free."""
        self._num_free += 1 << order
        while start ^ (1 << order) in self._free[order]:
            self._free[order].remove(start ^ (1 << order))
            start &= ~(1 << order)
            order += 1
        self._free[order].add(start)


BUDDY = Component("block_allocator", BuddySettings, "buddy:BuddyAllocator")
"""The component, as a plugin would yield it."""
