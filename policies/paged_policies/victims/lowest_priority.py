"""The least urgent group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.victim import Victim, VictimParts
from paged_core.sequence import SequenceGroup


class LowestPrioritySettings(ComponentSettings):
    """Options of :class:`LowestPriorityVictim`."""

    name: Literal["lowest_priority"] = "lowest_priority"


class LowestPriorityVictim(Victim):
    """The largest ``priority`` number gives way; among equals, the one deemed worst.

    Protects urgent requests whatever the order of the queue is. The least urgent one may be
    preempted again and again while urgent requests keep arriving."""

    def __init__(self, options: LowestPrioritySettings, parts: VictimParts, /) -> None:
        pass

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        return max(reversed(candidates), key=lambda group: group.request.priority)
