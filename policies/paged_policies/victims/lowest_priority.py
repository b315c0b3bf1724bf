"""The least urgent group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.component import ComponentSettings
from paged_core.interfaces.victim import Victim, VictimParts
from paged_core.sequence import SequenceGroup
from paged_policies.victims.spared import not_spared


class LowestPrioritySettings(ComponentSettings):
    """Options of :class:`LowestPriorityVictim`."""

    name: Literal["lowest_priority"] = "lowest_priority"
    max_preemptions: PositiveInt | None = Field(
        default=None,
        description="spare whoever was preempted so often while another can give way; null: never",
    )


class LowestPriorityVictim(Victim):
    """The largest ``priority`` number gives way; among equals, the one deemed worst.

    The choice of vLLM's V1 engine under priorities, whatever the order of the queue is. The least
    urgent request may be preempted again and again while others keep arriving: if its prompt takes
    several steps it can starve, unless ``max_preemptions`` spares it in the end.
    """

    def __init__(self, options: LowestPrioritySettings, parts: VictimParts, /) -> None:
        self._max_preemptions = options.max_preemptions

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        eligible = not_spared(candidates, self._max_preemptions)
        return max(reversed(eligible), key=lambda group: group.request.priority)
