"""Give up the block that has been cached longest."""

from __future__ import annotations

from typing import Any, Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.evictor import BlockInfo, EvictorParts
from paged_policies.evictors.ranked import RankedEvictor


class FifoSettings(ComponentSettings):
    """Options of :class:`FifoEvictor`."""

    name: Literal["fifo"] = "fifo"


class FifoEvictor(RankedEvictor):
    """First in, first out: how often and how lately a block was used does not matter.

    The cheapest idea of all, and the baseline that the others must beat. It gives up a popular
    prefix as readily as any other block, and the head of a prefix before its tail."""

    def __init__(self, options: FifoSettings, parts: EvictorParts, /) -> None:
        super().__init__()

    def rank(self, info: BlockInfo, /) -> Any:
        return info.published
