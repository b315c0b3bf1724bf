"""Blocks by rank."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from paged_core.ids import BlockId


class RankedBlocks:
    """A heap of ranks; removed blocks stay in it until they come up or are too many.

    Ranks are comparable with each other. Every operation costs O(log n), amortised.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, BlockId]] = []
        self._ranks: dict[BlockId, Any] = {}

    def add(self, block: BlockId, rank: Any) -> None:
        """Add a block that is not held."""
        self._ranks[block] = rank
        heappush(self._heap, (rank, block))

    def remove(self, block: BlockId) -> None:
        """Remove a block.

        Raises:
            KeyError: it is not held.
        """
        del self._ranks[block]
        if len(self._heap) > 2 * len(self._ranks) + 64:
            self._heap = [(rank, block) for block, rank in self._ranks.items()]
            heapify(self._heap)

    def first(self) -> tuple[Any, BlockId]:
        """Return the lowest rank and its block; of equal ranks, the lowest block id.

        Raises:
            IndexError: no block is held.
        """
        while True:
            rank, block = self._heap[0]
            if self._ranks.get(block) == rank:
                return rank, block
            heappop(self._heap)

    def pop(self) -> BlockId:
        """Remove the block that :meth:`first` returns, and return it.

        Raises:
            IndexError: no block is held.
        """
        _, block = self.first()
        heappop(self._heap)
        del self._ranks[block]
        return block

    def __contains__(self, block: BlockId) -> bool:
        return block in self._ranks

    def __len__(self) -> int:
        return len(self._ranks)
