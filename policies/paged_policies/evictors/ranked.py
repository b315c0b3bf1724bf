"""What evictors share that give up the block of lowest rank."""

from __future__ import annotations

from abc import abstractmethod
from heapq import heapify, heappop, heappush
from typing import Any

from paged_core.errors import OutOfBlocks
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.sequence import BlockId


class RankedEvictor(Evictor):
    """A heap of ranks; blocks that were used again stay in it until they come up or are too many.

    Every operation costs O(log n), amortised.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, BlockId]] = []
        self._ranks: dict[BlockId, Any] = {}

    @abstractmethod
    def rank(self, info: BlockInfo, /) -> Any:
        """Return a comparable rank; the lowest goes first, and of equals the lowest block id."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        rank = self.rank(info)
        self._ranks[block] = rank
        heappush(self._heap, (rank, block))

    def remove(self, block: BlockId, /) -> None:
        del self._ranks[block]
        if len(self._heap) > 2 * len(self._ranks) + 64:
            self._heap = [(rank, block) for block, rank in self._ranks.items()]
            heapify(self._heap)

    def evict(self) -> BlockId:
        if not self._ranks:
            raise OutOfBlocks("no cached block is idle")
        while True:
            rank, block = heappop(self._heap)
            if self._ranks.get(block) == rank:
                del self._ranks[block]
                return block

    def __len__(self) -> int:
        return len(self._ranks)
