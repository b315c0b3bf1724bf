"""The group that costs least to recompute."""

from __future__ import annotations

from typing import Literal

from paged_core.sequence import SequenceGroup
from paged_policies.victims.preemption_limit import LimitedSettings, LimitedVictim


class FewestComputedSettings(LimitedSettings):
    """Options of :class:`FewestComputedVictim`."""

    name: Literal["fewest_computed"] = "fewest_computed"


class FewestComputedVictim(LimitedVictim):
    """Fewest computed tokens first; among equals, the one that the scheduler ranks worst.

    Least work done is the classic choice where databases break deadlocks (Agrawal, Carey and
    DeWitt, 1987): the least is computed twice. It frees few blocks, so several groups may have to
    be preempted at once. New requests that the prefix cache puts ahead may have the same group
    preempted again and again, unless ``max_preemptions`` ends that.
    """

    def score(self, group: SequenceGroup, /) -> int:
        return -sum(sequence.num_computed for sequence in group.live)
