"""Give up the block whose last user left latest."""

from __future__ import annotations

from typing import Any, Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.evictor import BlockInfo, EvictorParts
from paged_policies.evictors.ranked import RankedEvictor


class MruSettings(ComponentSettings):
    """Options of :class:`MruEvictor`."""

    name: Literal["mru"] = "mru"


class MruEvictor(RankedEvictor):
    """Most recently used: right where work cycles through more than fits, wrong nearly everywhere.

    On a cyclic scan longer than the cache LRU misses every time, and this keeps a part of it
    (Chou and DeWitt, 1985). Of what one request left, the longest prefix goes first."""

    def __init__(self, options: MruSettings, parts: EvictorParts, /) -> None:
        super().__init__()

    def rank(self, info: BlockInfo, /) -> Any:
        return (-info.last_use, -info.num_tokens)
