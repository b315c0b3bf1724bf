"""Evict the block whose last user left earliest."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from pydantic import Field

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.plugins.component import ComponentSettings
from paged_policies.evictors.lru_scan import LruScanEvictor


class LruSettings(ComponentSettings):
    """Options of :class:`LruEvictor`."""

    name: Literal["lru"] = "lru"
    ties: Literal["release_order", "longest_prefix"] = Field(
        default="release_order",
        description="which of the blocks goes first whose last users ran in the same step: the one "
        "released first (vLLM V1), or the one that ends the longest prefix (vLLM V0)",
    )


class LruEvictor(Evictor):
    """Least recently used, as in vLLM; of what one request freed, the longest prefix first.

    Blocks are added in that order already, since a sequence frees its last block first.
    """

    def __init__(self, options: LruSettings, context: EvictorContext, /) -> None:
        self._blocks: OrderedDict[BlockId, None] = OrderedDict()

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self._blocks[block] = None

    def remove(self, block: BlockId, /) -> None:
        del self._blocks[block]

    def evict(self) -> BlockId:
        if not self._blocks:
            raise OutOfBlocks("no cached block is idle")
        return self._blocks.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._blocks)


def make_lru(options: LruSettings, context: EvictorContext, /) -> Evictor:
    """Return the evictor that breaks ties as the options say."""
    if options.ties == "longest_prefix":
        return LruScanEvictor()
    return LruEvictor(options, context)
