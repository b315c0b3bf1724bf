"""The group that frees the most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.engine.contexts import VictimContext
from paged_core.interfaces.victim import Victim
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup
from paged_policies.victims.preemption_limit import below_limit


class MostBlocksSettings(ComponentSettings):
    """Options of :class:`MostBlocksVictim`."""

    name: Literal["most_blocks"] = "most_blocks"
    max_preemptions: PositiveInt | None = Field(
        default=None,
        description="do not preempt a group more often while there is another; null: no limit",
    )


class MostBlocksVictim(Victim):
    """Most blocks first; among equals, the one that the scheduler ranks worst.

    As Linux kills the largest process when memory runs out: one preemption frees blocks for many
    steps. It hits long sequences, which cost the most to recompute; better with swapping. While
    others keep arriving a long request whose prompt takes several steps can starve, unless
    ``max_preemptions`` ends that.
    """

    def __init__(self, options: MostBlocksSettings, context: VictimContext, /) -> None:
        self._max_preemptions = options.max_preemptions
        self._kv_cache = context.kv_cache

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        eligible = below_limit(candidates, self._max_preemptions)
        return max(reversed(eligible), key=self._kv_cache.distinct_blocks)
