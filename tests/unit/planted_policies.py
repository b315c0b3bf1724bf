"""Policies of which it is known what they make worse, and one that is a copy of another."""

from __future__ import annotations

from typing import Literal

from paged_core.engine.contexts import EvictorContext
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo
from paged_core.plugins.component import Component, ComponentSettings
from paged_policies.evictors.lru import LruEvictor, LruSettings


class TwinSettings(ComponentSettings):
    name: Literal["lru_twin"] = "lru_twin"


class LruTwin(LruEvictor):
    """The base by another name."""

    def __init__(self, options: TwinSettings, context: EvictorContext, /) -> None:
        super().__init__(LruSettings(), context)


class WastefulSettings(ComponentSettings):
    name: Literal["wasteful"] = "wasteful"


class WastefulEvictor(LruTwin):
    """Keeps what is not asked for: blocks that were hit go first."""

    def __init__(self, options: WastefulSettings, context: EvictorContext, /) -> None:
        super().__init__(TwinSettings(), context)

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        super().add(block, info)
        if info.num_hits:
            self._blocks.move_to_end(block, last=False)


PLANTED = (
    Component("evictor", TwinSettings, "unit.planted_policies:LruTwin", summary="lru again"),
    Component(
        "evictor", WastefulSettings, "unit.planted_policies:WastefulEvictor", summary="worse"
    ),
)
