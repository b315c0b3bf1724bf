"""The group that the scheduler ranks worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from paged_core.engine.contexts import VictimContext
from paged_core.interfaces.victim import Victim
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup


class NewestSettings(ComponentSettings):
    """Options of :class:`NewestVictim`."""

    name: Literal["newest"] = "newest"


class NewestVictim(Victim):
    """The last candidate: under first come, first served, the one admitted last, as in vLLM."""

    def __init__(self, options: NewestSettings, context: VictimContext, /) -> None:
        pass

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        return candidates[-1]
