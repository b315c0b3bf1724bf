"""What evictors share that give up the block of lowest rank."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_policies.evictors.ranked_blocks import RankedBlocks


class RankedEvictor(Evictor):
    """Ranks a block by what is known of it when it comes; operations cost O(log n), amortised."""

    def __init__(self) -> None:
        self._blocks = RankedBlocks()

    @abstractmethod
    def rank(self, info: BlockInfo, /) -> Any:
        """Return a comparable rank; the lowest goes first, and of equals the lowest block id."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self._blocks.add(block, self.rank(info))

    def remove(self, block: BlockId, /) -> None:
        self._blocks.remove(block)

    def evict(self) -> BlockId:
        if not self._blocks:
            raise OutOfBlocks("no cached block is idle")
        return self._blocks.pop()

    def __len__(self) -> int:
        return len(self._blocks)
