"""The least urgent group."""

from __future__ import annotations

from typing import Literal

from paged_core.sequence import SequenceGroup
from paged_policies.victims.preemption_limit import LimitedSettings, LimitedVictim


class LowestPrioritySettings(LimitedSettings):
    """Options of :class:`LowestPriorityVictim`."""

    name: Literal["lowest_priority"] = "lowest_priority"


class LowestPriorityVictim(LimitedVictim):
    """Largest ``priority`` number first; among equals, the one that the scheduler ranks worst.

    The choice of vLLM's V1 engine under priorities, with any queue order. The least
    urgent request may be preempted again and again while others keep arriving: if its prompt takes
    several steps it can starve, unless ``max_preemptions`` ends that.
    """

    def score(self, group: SequenceGroup, /) -> int:
        return group.request.priority
