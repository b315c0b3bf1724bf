"""Evict the oldest block that was not hit since the hand passed it."""

from __future__ import annotations

from typing import Literal

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_policies.evictors.leaves import LeavesSettings, on_leaves
from paged_policies.evictors.ranked_blocks import RankedBlocks


class SieveSettings(LeavesSettings):
    """Options of :class:`SieveEvictor`."""

    name: Literal["sieve"] = "sieve"


class SieveEvictor(Evictor):
    """SIEVE (Zhang et al., NSDI 2024): a queue in the order of arrival, and a hand.

    The hand goes from the oldest block to the newest, and begins again. It spares a block that was
    hit since it passed, and evicts the first one that was not; blocks never move. A block in use
    keeps its place, by the time at which it was cached. Operations cost O(log n), amortised.
    """

    def __init__(self, options: SieveSettings, context: EvictorContext, /) -> None:
        self._ahead, self._behind = RankedBlocks(), RankedBlocks()
        self._hand = -1
        self._infos: dict[BlockId, BlockInfo] = {}
        self._passed: dict[BlockId, tuple[int, int]] = {}
        """When the content was cached that the hand passed, and its hits then."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self._infos[block] = info
        side = self._ahead if info.cache_order > self._hand else self._behind
        side.add(block, info.cache_order)

    def remove(self, block: BlockId, /) -> None:
        del self._infos[block]
        (self._ahead if block in self._ahead else self._behind).remove(block)

    def evict(self) -> BlockId:
        while self._infos:
            if not self._ahead:
                self._ahead, self._behind = self._behind, self._ahead
            self._hand, _ = self._ahead.first()
            block = self._ahead.pop()
            info = self._infos[block]
            since, hits = self._passed.get(block, (-1, 0))
            if info.num_hits <= (hits if since == info.cache_order else 0):
                del self._infos[block]
                return block
            self._passed[block] = info.cache_order, info.num_hits
            self._behind.add(block, info.cache_order)
        raise OutOfBlocks("no cached block is idle")

    def __len__(self) -> int:
        return len(self._infos)


make_sieve = on_leaves(SieveEvictor)
