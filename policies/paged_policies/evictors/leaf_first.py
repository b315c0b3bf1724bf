"""Evict the leaves of the tree of cached prefixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field

from paged_core.engine.contexts import EvictorContext
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.plugins.component import ComponentSettings
from paged_policies.evictors.leaves import LeavesFirst
from paged_policies.evictors.ranked import RankedEvictor

_RANKS: Mapping[str, Callable[[BlockInfo], Any]] = {
    "lru": lambda info: info.last_use,
    "mru": lambda info: -info.last_use,
    "lfu": lambda info: (info.num_hits, info.last_use),
    "fifo": lambda info: info.cache_order,
    "filo": lambda info: -info.cache_order,
}


class LeafFirstSettings(ComponentSettings):
    """Options of :class:`LeafFirstEvictor`."""

    name: Literal["leaf_first"] = "leaf_first"
    by: Literal["lru", "mru", "lfu", "fifo", "filo"] = Field(
        default="lfu",
        description="which leaf goes first: used least or most recently, hit least often, cached "
        "first or last",
    )


class LeafFirstEvictor(RankedEvictor):
    """The order of SGLang's radix tree (Zheng et al., 2024), whose leaves alone are evicted."""

    def __init__(self, options: LeafFirstSettings, context: EvictorContext, /) -> None:
        super().__init__(options, context)
        self._rank = _RANKS[options.by]

    def rank(self, info: BlockInfo, /) -> Any:
        return (self._rank(info), -info.num_tokens)


def make_leaf_first(options: LeafFirstSettings, context: EvictorContext, /) -> Evictor:
    """Return the evictor; a block becomes a leaf when the last one that depends on it is gone."""
    return LeavesFirst(LeafFirstEvictor(options, context))
