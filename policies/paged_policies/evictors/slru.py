"""Evict blocks that were used once before blocks that were used again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from pydantic import Field

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.plugins.component import ComponentSettings


class SlruSettings(ComponentSettings):
    """Options of :class:`SlruEvictor`."""

    name: Literal["slru"] = "slru"
    protected: float = Field(
        default=0.8, gt=0, lt=1, description="share of all blocks that may be protected"
    )


class SlruEvictor(Evictor):
    """Segmented least recently used (Karedla, Love and Wherry, 1994).

    A block that was hit is protected; one that never was is on probation and is evicted first.
    When too many are protected, the least recently used of them is on probation again. It resists
    a flood of prompts that are never used again, as LFU does, but forgets old popularity.
    """

    def __init__(self, options: SlruSettings, context: EvictorContext, /) -> None:
        self._max_protected = int(options.protected * context.num_blocks)
        self._probation: OrderedDict[BlockId, None] = OrderedDict()
        self._protected: OrderedDict[BlockId, None] = OrderedDict()

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        if not info.num_hits:
            self._probation[block] = None
            return
        self._protected[block] = None
        while len(self._protected) > self._max_protected:
            self._probation[self._protected.popitem(last=False)[0]] = None

    def remove(self, block: BlockId, /) -> None:
        if block in self._probation:
            del self._probation[block]
        else:
            del self._protected[block]

    def evict(self) -> BlockId:
        for segment in (self._probation, self._protected):
            if segment:
                return segment.popitem(last=False)[0]
        raise OutOfBlocks("no cached block is idle")

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)
