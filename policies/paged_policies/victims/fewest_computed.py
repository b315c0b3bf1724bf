"""The group whose loss costs least to make good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.component import ComponentSettings
from paged_core.interfaces.victim import Victim, VictimParts
from paged_core.sequence import SequenceGroup
from paged_policies.victims.spared import not_spared


class FewestComputedSettings(ComponentSettings):
    """Options of :class:`FewestComputedVictim`."""

    name: Literal["fewest_computed"] = "fewest_computed"
    max_preemptions: PositiveInt | None = Field(
        default=None,
        description="spare whoever was preempted so often while another can give way; null: never",
    )


class FewestComputedVictim(Victim):
    """The fewest computed tokens give way; among equals, the one that the scheduler deems worst.

    Whoever has done the least work is the classic choice where databases break deadlocks (Agrawal,
    Carey and DeWitt, 1987): the least is computed twice. It frees little, so several may have to
    give way at once. Newcomers that the prefix cache puts ahead may push the same one out again and
    again, unless ``max_preemptions`` spares it in the end.
    """

    def __init__(self, options: FewestComputedSettings, parts: VictimParts, /) -> None:
        self._max_preemptions = options.max_preemptions

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        eligible = not_spared(candidates, self._max_preemptions)
        return min(reversed(eligible), key=lambda group: sum(s.num_computed for s in group.live))
