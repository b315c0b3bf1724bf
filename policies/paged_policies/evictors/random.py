"""Evict a random block."""

from __future__ import annotations

from random import Random
from typing import Literal

from pydantic import Field, NonNegativeInt

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_policies.evictors.leaves import LeavesSettings, on_leaves


class RandomSettings(LeavesSettings):
    """Options of :class:`RandomEvictor`."""

    name: Literal["random"] = "random"
    seed: NonNegativeInt | None = Field(default=None, description="null: the engine's")


class RandomEvictor(Evictor):
    """Draws at random, the same blocks for the same seed: what any policy must be better than.

    It has no bad case that a workload could run into, and no good one. All operations cost O(1).
    """

    def __init__(self, options: RandomSettings, context: EvictorContext, /) -> None:
        self._random = Random(context.seed if options.seed is None else options.seed)
        self._blocks: list[BlockId] = []
        self._places: dict[BlockId, int] = {}

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self._places[block] = len(self._blocks)
        self._blocks.append(block)

    def remove(self, block: BlockId, /) -> None:
        place, last = self._places.pop(block), self._blocks.pop()
        if last != block:
            self._blocks[place] = last
            self._places[last] = place

    def evict(self) -> BlockId:
        if not self._blocks:
            raise OutOfBlocks("no cached block is idle")
        block = self._random.choice(self._blocks)
        self.remove(block)
        return block

    def __len__(self) -> int:
        return len(self._blocks)


make_random = on_leaves(RandomEvictor)
