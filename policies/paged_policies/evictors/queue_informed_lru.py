"""Evict last those blocks that waiting requests are going to look up."""

from __future__ import annotations

from itertools import count
from typing import Literal

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.plugins.component import ComponentSettings
from paged_policies.evictors.ranked_blocks import RankedBlocks


class QueueInformedLruSettings(ComponentSettings):
    """Options of :class:`QueueInformedLruEvictor`: it has none."""

    name: Literal["queue_informed_lru"] = "queue_informed_lru"


class QueueInformedLruEvictor(Evictor):
    """Least recently used, of content that no waiting request wants, then of the other.

    After the proposal of vLLM's issue 48485, which looks at the head of the queue in each
    allocation. Here all waiting requests count alike, and are counted as they come and go.
    Operations cost O(log n), amortised, for each block of the content.
    """

    def __init__(self, options: QueueInformedLruSettings, context: EvictorContext, /) -> None:
        self._blocks, self._arrivals = RankedBlocks(), count()
        self._held: dict[BlockId, tuple[int, int | None]] = {}
        self._by_key: dict[int | None, dict[BlockId, None]] = {}
        self._wanted: set[int | None] = set()

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        key = info.content_key
        self._held[block] = next(self._arrivals), key
        self._by_key.setdefault(key, {})[block] = None
        self._blocks.add(block, (key in self._wanted, self._held[block][0]))

    def remove(self, block: BlockId, /) -> None:
        _, key = self._held.pop(block)
        self._blocks.remove(block)
        del self._by_key[key][block]
        if not self._by_key[key]:
            del self._by_key[key]

    def wanted(self, content_key: int, is_wanted: bool, /) -> None:
        """Note that a waiting request wants some content, or that none does any more."""
        (self._wanted.add if is_wanted else self._wanted.discard)(content_key)
        for block in self._by_key.get(content_key, ()):
            self._blocks.remove(block)
            self._blocks.add(block, (is_wanted, self._held[block][0]))

    def evict(self) -> BlockId:
        if not self._held:
            raise OutOfBlocks("no cached block is idle")
        _, block = self._blocks.first()
        self.remove(block)
        return block

    def __len__(self) -> int:
        return len(self._held)
