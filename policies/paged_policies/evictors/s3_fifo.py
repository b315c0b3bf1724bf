"""Evict blocks from a small queue of new content and a main one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import count
from typing import Literal

from pydantic import Field

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_policies.evictors.leaves import LeavesSettings, on_leaves
from paged_policies.evictors.ranked_blocks import RankedBlocks


class S3FifoSettings(LeavesSettings):
    """Options of :class:`S3FifoEvictor`."""

    name: Literal["s3_fifo"] = "s3_fifo"
    small: float = Field(
        default=0.1, gt=0, lt=1, description="share of the idle blocks that the small queue may be"
    )


class S3FifoEvictor(Evictor):
    """S3-FIFO (Yang et al., SOSP 2023): queues S (small) and M (main), and keys of a ghost queue G.

    New content joins S; what is evicted from there leaves its key in G, and joins M if it comes
    back. A block of S with more than one hit goes to M; one of M with hits is put back, with one of
    them less. At most three hits count. A block in use keeps its place; shares are of the idle
    blocks, and G has as many keys as M may have of the most blocks held at once. Operations cost
    O(log n), amortised.
    """

    def __init__(self, options: S3FifoSettings, context: EvictorContext, /) -> None:
        self._share, self._size = options.small, 0
        self._small, self._main = RankedBlocks(), RankedBlocks()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._arrivals = count()
        self._entries: dict[BlockId, _Entry] = {}

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        entry = self._entries.get(block)
        if entry is None or entry.cached != info.cache_order:
            key = info.content_key
            entry = _Entry(info.cache_order, next(self._arrivals), key, key in self._ghosts)
            self._entries[block] = entry
            if key is not None:
                self._ghosts.pop(key, None)
        entry.hits = min(3, entry.hits + info.num_hits - entry.seen)
        entry.seen = info.num_hits
        (self._main if entry.in_main else self._small).add(block, entry.place)
        self._size = max(self._size, len(self))

    def remove(self, block: BlockId, /) -> None:
        (self._small if block in self._small else self._main).remove(block)

    def evict(self) -> BlockId:
        while len(self):
            is_small = bool(self._small) and (
                len(self._small) >= self._share * len(self) or not self._main
            )
            block = (self._small if is_small else self._main).pop()
            entry = self._entries[block]
            if entry.hits <= is_small:
                if is_small and entry.key is not None:
                    self._remember(entry.key)
                return block
            entry.hits -= not is_small
            entry.in_main, entry.place = True, next(self._arrivals)
            self._main.add(block, entry.place)
        raise OutOfBlocks("no cached block is idle")

    def _remember(self, key: int) -> None:
        self._ghosts[key] = None
        while len(self._ghosts) > (1 - self._share) * self._size:
            self._ghosts.popitem(last=False)

    def __len__(self) -> int:
        return len(self._small) + len(self._main)


@dataclass(slots=True)
class _Entry:
    """The place of a block, for as long as it has the same content, and its hits that count."""

    cached: int
    place: int
    key: int | None
    in_main: bool
    hits: int = 0
    seen: int = 0


make_s3_fifo = on_leaves(S3FifoEvictor)
