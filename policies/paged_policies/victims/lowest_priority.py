"""The least urgent group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.engine.contexts import VictimContext
from paged_core.interfaces.victim import Victim
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup
from paged_policies.victims.preemption_limit import below_limit


class LowestPrioritySettings(ComponentSettings):
    """Options of :class:`LowestPriorityVictim`."""

    name: Literal["lowest_priority"] = "lowest_priority"
    max_preemptions: PositiveInt | None = Field(
        default=None,
        description="do not preempt a group more often while there is another; null: no limit",
    )


class LowestPriorityVictim(Victim):
    """Largest ``priority`` number first; among equals, the one that the scheduler ranks worst.

    The choice of vLLM's V1 engine under priorities, with any queue order. The least
    urgent request may be preempted again and again while others keep arriving: if its prompt takes
    several steps it can starve, unless ``max_preemptions`` ends that.
    """

    def __init__(self, options: LowestPrioritySettings, context: VictimContext, /) -> None:
        self._max_preemptions = options.max_preemptions

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        eligible = below_limit(candidates, self._max_preemptions)
        return max(reversed(eligible), key=lambda group: group.request.priority)
