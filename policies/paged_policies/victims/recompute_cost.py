"""The group whose blocks are the cheapest to compute again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from paged_core.engine.contexts import VictimContext
from paged_core.sequence import SequenceGroup
from paged_policies.recompute_cost import EVEN_AT, EvenAt, cost_of_token
from paged_policies.victims.preemption_limit import LimitedSettings, LimitedVictim


class RecomputeCostSettings(LimitedSettings):
    """Options of :class:`RecomputeCostVictim`."""

    name: Literal["recompute_cost"] = "recompute_cost"
    even_at: EvenAt = EVEN_AT


class RecomputeCostVictim(LimitedVictim):
    """Most blocks freed for the work that is lost; groups that would free none come last.

    A block that another group holds is neither freed nor lost. A lost token costs 1, and more by
    the attention over what is before it. Reclaimable blocks over the cost to recompute are what
    vLLM's pull request 56897 weighs.
    """

    def __init__(self, options: RecomputeCostSettings, context: VictimContext, /) -> None:
        super().__init__(options, context)
        self._even_at = options.even_at
        self._uses: Sequence[int] = ()

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        self._uses, _ = self._kv_cache.block_use()
        return super().choose(candidates, now)

    def score(self, group: SequenceGroup, /) -> float:
        held = Counter(block for sequence in group.live for block in sequence.table.blocks)
        freed = {block for block, times in held.items() if self._uses[block] == times}
        cost = 0.0
        for sequence in group.live:
            own = sum(block in freed for block in sequence.table.blocks)
            lost = min(own * self._kv_cache.block_size, sequence.num_computed)
            cost += lost * cost_of_token(sequence.num_computed - lost / 2, self._even_at)
        return len(freed) / max(cost, 0.5)
