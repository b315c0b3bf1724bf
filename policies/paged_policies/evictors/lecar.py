"""Evict the least recently or the least often used block, by which was regretted less."""

from __future__ import annotations

from collections import OrderedDict
from math import exp
from random import Random
from typing import Literal

from pydantic import Field

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.plugins.component import ComponentSettings
from paged_policies.evictors.ranked_blocks import RankedBlocks


class LecarSettings(ComponentSettings):
    """Options of :class:`LecarEvictor`."""

    name: Literal["lecar"] = "lecar"
    learning_rate: float = Field(
        default=0.45, gt=0, le=100, description="how much a regret moves the weights"
    )
    discount: float = Field(
        default=0.005,
        gt=0,
        le=1,
        description="weight of a regret after as many uses as there are blocks",
    )


class LecarEvictor(Evictor):
    """LeCaR (Vietri et al., HotStorage 2018): LRU and LFU, drawn by weights that are learned.

    The content that each of them evicted is remembered. If it comes back, the other one gains
    weight, the more the sooner it was. Hits are those since the content was cached. Operations cost
    O(log n), amortised; the same seed gives the same choices.
    """

    def __init__(self, options: LecarSettings, context: EvictorContext, /) -> None:
        self._random = Random(context.seed)
        self._rate, self._size = options.learning_rate, context.num_blocks
        self._discount = options.discount ** (1 / self._size)
        self._experts = RankedBlocks(), RankedBlocks()
        self._ghosts: tuple[OrderedDict[int, int], ...] = OrderedDict(), OrderedDict()
        self._recency, self._now = 0.5, 0
        self._keys: dict[BlockId, int | None] = {}

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self._now += 1
        self._keys[block] = key = info.content_key
        for expert, ghosts in enumerate(self._ghosts):
            if key is not None and key in ghosts:
                age = self._now - ghosts.pop(key)
                gain = exp((2 * expert - 1) * self._rate * self._discount**age)
                share = self._recency * gain / (self._recency * gain + 1 - self._recency)
                self._recency = min(max(share, 0.01), 0.99)  # neither is given up
        recent, frequent = self._experts
        recent.add(block, (info.last_use, -info.num_tokens))
        frequent.add(block, (info.num_hits, info.last_use, -info.num_tokens))

    def remove(self, block: BlockId, /) -> None:
        del self._keys[block]
        for expert in self._experts:
            expert.remove(block)

    def evict(self) -> BlockId:
        if not self._keys:
            raise OutOfBlocks("no cached block is idle")
        expert = int(self._random.random() >= self._recency)
        _, block = self._experts[expert].first()
        key, ghosts = self._keys[block], self._ghosts[expert]
        self.remove(block)
        if key is not None:
            ghosts[key] = self._now
            if len(ghosts) > self._size:
                ghosts.popitem(last=False)
        return block

    def __len__(self) -> int:
        return len(self._keys)
