"""The group whose loss costs least to make good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.victim import Victim, VictimParts
from paged_core.sequence import SequenceGroup


class FewestComputedSettings(ComponentSettings):
    """Options of :class:`FewestComputedVictim`."""

    name: Literal["fewest_computed"] = "fewest_computed"


class FewestComputedVictim(Victim):
    """The fewest computed tokens give way; among equals, the one that the scheduler deems worst.

    Keeps what was computed at the highest cost, so the least is computed twice. It frees little,
    so several may have to give way at once."""

    def __init__(self, options: FewestComputedSettings, parts: VictimParts, /) -> None:
        pass

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        return min(reversed(candidates), key=lambda group: sum(s.num_computed for s in group.live))
