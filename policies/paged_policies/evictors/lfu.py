"""Give up the block that was found least often."""

from __future__ import annotations

from typing import Any, Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.evictor import BlockInfo, EvictorParts
from paged_policies.evictors.ranked import RankedEvictor


class LfuSettings(ComponentSettings):
    """Options of :class:`LfuEvictor`."""

    name: Literal["lfu"] = "lfu"


class LfuEvictor(RankedEvictor):
    """Least frequently used, then least recently; of what one request left, the longest prefix.

    Keeps prefixes that many requests share through a flood of unique ones. It holds on to what was
    popular once: hits are never forgotten while a block stays cached."""

    def __init__(self, options: LfuSettings, parts: EvictorParts, /) -> None:
        super().__init__()

    def rank(self, info: BlockInfo, /) -> Any:
        return (info.num_hits, info.last_use, -info.num_tokens)
