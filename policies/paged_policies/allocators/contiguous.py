"""Allocation without paging: one run of adjacent blocks for a sequence's whole life."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from paged_core.engine.contexts import AllocatorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.allocator import BlockAllocator
from paged_core.plugins.component import ComponentSettings
from paged_policies.allocators.free_runs import FreeRuns


class ContiguousSettings(ComponentSettings):
    """Options of :class:`ContiguousAllocator`."""

    name: Literal["contiguous"] = "contiguous"
    reserve: Literal["max", "power_of_two", "exact"] = Field(
        default="max",
        description="for max_model_len tokens, for the next power of two of the final length, or "
        "for the final length as an oracle knows it",
    )


class ContiguousAllocator(BlockAllocator):
    """One run of adjacent blocks per sequence, first fit, as FasterTransformer and Orca had it.

    The baselines of the PagedAttention paper (Kwon et al., 2023, section 6.1): "Max", "Pow2" and
    "Oracle"; for "Pow2" the paper rounds the output up to a power of two, this one the final
    length. Nothing is shared and nothing grows, so no sequence is ever preempted for blocks; the
    price is what is reserved and not used, and free runs that are too short for any sequence.
    """

    def __init__(self, options: ContiguousSettings, context: AllocatorContext, /) -> None:
        self._reserve = options.reserve
        self._block_size = context.block_size
        self._max_model_len = context.max_model_len
        self._runs = FreeRuns(context.num_blocks)
        self._ref_counts = [0] * context.num_blocks
        self._num_free = context.num_blocks

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def fragmentation(self) -> float:
        """Share of the free blocks that lie outside the longest free run: 0 is none."""
        return 1 - self._runs.longest / self._num_free if self._num_free else 0.0

    def blocks_to_reserve(self, num_tokens: int, max_num_tokens: int, /) -> int:
        if self._reserve == "max":
            max_num_tokens = self._max_model_len
        elif self._reserve == "power_of_two":
            max_num_tokens = min(1 << (max_num_tokens - 1).bit_length(), self._max_model_len)
        return -(-max(num_tokens, max_num_tokens) // self._block_size)

    def can_reserve(self, count: int, /) -> bool:
        return count <= self._runs.longest

    def reserve(self, count: int, /) -> list[BlockId]:
        start = self._runs.first_fit(count)
        if start is None:
            raise OutOfBlocks(
                f"{count} adjacent blocks are needed and the longest run of the {self._num_free} "
                f"free ones has {self._runs.longest}"
            )
        return self._take(range(start, start + count))

    def allocate(self, count: int, /) -> list[BlockId]:
        if count > self._num_free:
            raise OutOfBlocks(f"{count} blocks are needed and {self._num_free} are free")
        taken: list[BlockId] = []
        for _ in range(count):
            start = self._runs.first_fit(1)
            assert start is not None
            taken += self._take(range(start, start + 1))
        return taken

    def share(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            self._ref_counts[block] += 1

    def free(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            self._ref_counts[block] -= 1
            if not self._ref_counts[block]:
                self._runs.set_free(block, free=True)
                self._num_free += 1

    def ref_count(self, block: BlockId, /) -> int:
        return self._ref_counts[block]

    def _take(self, blocks: range) -> list[BlockId]:
        for block in blocks:
            self._runs.set_free(block, free=False)
            self._ref_counts[block] = 1
        self._num_free -= len(blocks)
        return [BlockId(block) for block in blocks]
