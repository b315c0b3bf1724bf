"""Evictors that weigh how dear it is to compute a block again."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat

from paged_core.engine.contexts import EvictorContext
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo
from paged_policies.evictors.leaves import LeavesSettings, on_leaves
from paged_policies.evictors.ranked import RankedEvictor
from paged_policies.recompute_cost import EVEN_AT, EvenAt, cost_of_token


class CostSettings(LeavesSettings):
    """Options of evictors that know what a block costs."""

    leaves_first: bool = Field(
        default=True,
        description="evict no block that others depend on, which could not be found without it",
    )
    even_at: EvenAt = EVEN_AT


class GdsfSettings(CostSettings):
    """Options of :class:`GdsfEvictor`."""

    name: Literal["gdsf"] = "gdsf"


class RecomputeCostSettings(CostSettings):
    """Options of :class:`RecomputeCostEvictor`."""

    name: Literal["recompute_cost"] = "recompute_cost"
    weight: NonNegativeFloat = Field(
        default=64.0,
        description="releases by which a block counts as used later for each time that it costs as "
        "much as one at the start of a prompt",
    )


class CostAwareEvictor(RankedEvictor):
    """Base of evictors by cost; the cost of the first block of a prompt is 1."""

    def __init__(self, options: CostSettings, context: EvictorContext, /) -> None:
        super().__init__(options, context)
        self._even_at = options.even_at

    def cost(self, info: BlockInfo) -> float:
        """Operations to compute a block again, those of attention over its prefix included."""
        return cost_of_token(info.num_tokens, self._even_at)


class GdsfEvictor(CostAwareEvictor):
    """Greedy dual, size and frequency (Cherkasova, 1998; all blocks have the same size).

    The priority of a block is its uses times its cost, plus that of the block evicted last before
    its last use: by so much what is used no more ages. The lowest goes first.
    """

    def __init__(self, options: GdsfSettings, context: EvictorContext, /) -> None:
        super().__init__(options, context)
        self._clock = 0.0
        self._priorities: dict[BlockId, tuple[int, float]] = {}
        """The last use of each block, and the priority that it got then."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        use, priority = self._priorities.get(block, (None, 0.0))
        if use != info.last_use:  # else it is given back
            priority = self._clock + (1 + info.num_hits) * self.cost(info)
            self._priorities[block] = info.last_use, priority
        self._blocks.add(block, (priority, info.last_use, -info.num_tokens))

    def evict(self) -> BlockId:
        block = super().evict()
        self._clock = max(self._clock, self._priorities[block][1])
        return block

    def rank(self, info: BlockInfo, /) -> Any:
        return None  # it also depends on when


class RecomputeCostEvictor(CostAwareEvictor):
    """Least recent use and lowest cost, weighed against each other (Marconi, Pan et al., 2025).

    Marconi adds recency to a weight times the arithmetic saved per byte, both brought to the same
    scale among all candidates; here the scale is fixed, in releases.
    """

    def __init__(self, options: RecomputeCostSettings, context: EvictorContext, /) -> None:
        super().__init__(options, context)
        self._weight = options.weight

    def rank(self, info: BlockInfo, /) -> Any:
        use = info.last_use + self._weight * self.cost(info)
        return (use, info.last_use, -info.num_tokens)


make_gdsf = on_leaves(GdsfEvictor)
make_recompute_cost = on_leaves(RecomputeCostEvictor)
