"""Evictors that rank a block once, when it becomes idle: first in, least and most used."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.plugins.component import ComponentSettings
from paged_policies.evictors.leaves import LeavesSettings, on_leaves
from paged_policies.evictors.ranked_blocks import RankedBlocks


class FifoSettings(LeavesSettings):
    """Options of :class:`FifoEvictor`."""

    name: Literal["fifo"] = "fifo"


class LfuSettings(ComponentSettings):
    """Options of :class:`LfuEvictor`."""

    name: Literal["lfu"] = "lfu"


class MruSettings(ComponentSettings):
    """Options of :class:`MruEvictor`."""

    name: Literal["mru"] = "mru"


class RankedEvictor(Evictor):
    """Evicts the block of the lowest rank; operations cost O(log n), amortised."""

    def __init__(self, options: ComponentSettings, context: EvictorContext, /) -> None:
        self._blocks = RankedBlocks()

    @abstractmethod
    def rank(self, info: BlockInfo, /) -> Any:
        """Return a comparable rank; of equal ranks the lowest block id is evicted first."""

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


class FifoEvictor(RankedEvictor):
    """First in, first out: how often and how recently a block was used does not matter.

    The simplest policy, and the baseline that the others must beat. It evicts a popular prefix as
    readily as any other block, and the head of a prefix before its tail, which then is never
    found, unless ``leaves_first``.
    """

    def rank(self, info: BlockInfo, /) -> Any:
        return info.cache_order


make_fifo = on_leaves(FifoEvictor)


class LfuEvictor(RankedEvictor):
    """Least frequently used, then least recently; of what one request left, the longest prefix.

    Keeps prefixes that many requests share through a flood of unique ones. It also keeps what was
    popular only in the past: hits are never forgotten while a block stays cached.
    """

    def rank(self, info: BlockInfo, /) -> Any:
        return (info.num_hits, info.last_use, -info.num_tokens)


class MruEvictor(RankedEvictor):
    """Most recently used: for workloads that cycle through more than fits.

    On a cyclic scan longer than the cache LRU always misses, and this keeps a part of it (Chou and
    DeWitt, 1985). Of the blocks that one request freed, the longest prefix is evicted first.
    """

    def rank(self, info: BlockInfo, /) -> Any:
        return (-info.last_use, -info.num_tokens)
