"""Evict new content before content that was used again after an eviction."""

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
from paged_core.plugins.component import ComponentSettings
from paged_policies.evictors.ranked_blocks import RankedBlocks


class TwoQSettings(ComponentSettings):
    """Options of :class:`TwoQEvictor`."""

    name: Literal["two_q"] = "two_q"
    kin: float = Field(
        default=0.25, gt=0, lt=1, description="share of the idle blocks that may be new"
    )
    kout: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="keys of evicted content that are remembered, as a share of the most blocks "
        "held at once",
    )


class TwoQEvictor(Evictor):
    """2Q, the full version (Johnson and Shasha, VLDB 1994).

    New content is held in a queue, first in, first out (A1in of the paper). If it is used again
    while it is there it keeps its place, since uses in quick succession do not show popularity.
    When it is evicted, its key is kept as a ghost (A1out); content that is used again while its
    ghost is kept joins the main list, least recently used first (Am). The block to evict comes
    from the queue if that has more than its share (``kin``), else from the main list, without a
    ghost.

    An evictor holds idle blocks only, so ``kin`` is a share of the blocks held at the time, and
    ``kout`` of the most blocks held at once. Content joins the queue when its first user releases
    it. Without content keys there are no ghost hits.

    Operations cost O(log n), amortised.
    """

    def __init__(self, options: TwoQSettings, context: EvictorContext, /) -> None:
        self._kin, self._kout = options.kin, options.kout
        self._size = 0
        self._queue = RankedBlocks()
        self._main: OrderedDict[BlockId, None] = OrderedDict()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._arrivals = count()
        self._places: dict[BlockId, _Place] = {}
        """Pages of blocks that are held, or were removed and may be added again."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        key = info.content_key
        place = self._places.get(block)
        if place is None or place.content_key != key:  # else it was used again and is back
            place = self._places[block] = _Place(key, next(self._arrivals), key in self._ghosts)
            if key is not None:
                self._ghosts.pop(key, None)
        if place.in_main:
            self._main[block] = None
        else:
            self._queue.add(block, place.arrival)
        self._size = max(self._size, len(self))

    def remove(self, block: BlockId, /) -> None:
        if block in self._main:
            del self._main[block]
        else:
            self._queue.remove(block)

    def evict(self) -> BlockId:
        if not len(self):
            raise OutOfBlocks("no cached block is idle")
        if len(self._queue) > self._kin * len(self):
            block = self._queue.pop()
            self._remember(self._places.pop(block).content_key)
        else:
            block, _ = self._main.popitem(last=False)
            del self._places[block]
        return block

    def __len__(self) -> int:
        return len(self._queue) + len(self._main)

    def _remember(self, key: int | None) -> None:
        if key is None:
            return
        self._ghosts.pop(key, None)
        self._ghosts[key] = None
        while len(self._ghosts) > self._kout * self._size:
            self._ghosts.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a block for as long as it holds the same content."""

    content_key: int | None
    arrival: int
    in_main: bool
