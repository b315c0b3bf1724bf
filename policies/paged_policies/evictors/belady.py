"""Evict the block whose next use is furthest in the future, which only a replay knows."""

from __future__ import annotations

from typing import Literal

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks, SettingsError
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.plugins.component import ComponentSettings
from paged_policies.evictors.ranked_blocks import RankedBlocks


class BeladySettings(ComponentSettings):
    """Options of :class:`BeladyEvictor`."""

    name: Literal["belady"] = "belady"


class BeladyEvictor(Evictor):
    """The clairvoyant rule (Belady, 1966): no other misses less often, if the future is as given.

    Evicts content that is never used again first, least recently used first; then the content
    whose next use is furthest in the future; among blocks that one request uses next, the longest
    prefix. It assumes that requests are admitted in the order of arrival, and is a bound only if
    they are: the second look-up of a preempted request, for example, is not foreseen.

    Operations cost O(log n), amortised, plus as much for each block whose next request did not
    use it.

    Raises:
        SettingsError: the future is not known.
    """

    def __init__(self, options: BeladySettings, context: EvictorContext, /) -> None:
        if context.future is None:
            raise SettingsError(
                "evictor 'belady' needs to know future requests, and neither a live engine nor a "
                "cluster does; use it with `paged-core replay`, `compare`, or `simulate` without "
                "--replicas and --requests, or set evictor to lru or another one that looks back"
            )
        self._future = context.future
        self._infos: dict[BlockId, BlockInfo] = {}
        self._last_first = RankedBlocks()
        self._next_first = RankedBlocks()
        """Content that is needed again, by the next request that needs them."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self._infos[block] = info
        next_use = self._future.next_use(info.content_key)
        if next_use is None:
            self._last_first.add(block, (0, info.last_use, -info.num_tokens))
        else:
            self._last_first.add(block, (1, -next_use, -info.num_tokens))
            self._next_first.add(block, next_use)

    def remove(self, block: BlockId, /) -> None:
        del self._infos[block]
        self._last_first.remove(block)
        if block in self._next_first:
            self._next_first.remove(block)

    def evict(self) -> BlockId:
        if not self._infos:
            raise OutOfBlocks("no cached block is idle")
        self._look_again()
        _, block = self._last_first.first()
        self.remove(block)
        return block

    def __len__(self) -> int:
        return len(self._infos)

    def _look_again(self) -> None:
        """Rank blocks again whose next request has passed without using them."""
        while self._next_first:
            next_use, block = self._next_first.first()
            if next_use >= self._future.position:
                break
            info = self._infos[block]
            self.remove(block)
            self.add(block, info)
