"""The group that costs least to recompute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.engine.contexts import VictimContext
from paged_core.interfaces.victim import Victim
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup
from paged_policies.victims.preemption_limit import below_limit


class FewestComputedSettings(ComponentSettings):
    """Options of :class:`FewestComputedVictim`."""

    name: Literal["fewest_computed"] = "fewest_computed"
    max_preemptions: PositiveInt | None = Field(
        default=None,
        description="do not preempt a group more often while there is another; null: no limit",
    )


class FewestComputedVictim(Victim):
    """Fewest computed tokens first; among equals, the one that the scheduler ranks worst.

    Least work done is the classic choice where databases break deadlocks (Agrawal, Carey and
    DeWitt, 1987): the least is computed twice. It frees few blocks, so several groups may have to
    be preempted at once. New requests that the prefix cache puts ahead may have the same group
    preempted again and again, unless ``max_preemptions`` ends that.
    """

    def __init__(self, options: FewestComputedSettings, context: VictimContext, /) -> None:
        self._max_preemptions = options.max_preemptions

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        eligible = below_limit(candidates, self._max_preemptions)
        return min(reversed(eligible), key=lambda group: sum(s.num_computed for s in group.live))
