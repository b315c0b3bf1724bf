"""The group that has the most left to generate."""

from __future__ import annotations

from typing import Literal

from paged_core.sequence import SequenceGroup
from paged_policies.victims.preemption_limit import LimitedSettings, LimitedVictim


class MostRemainingSettings(LimitedSettings):
    """Options of :class:`MostRemainingVictim`."""

    name: Literal["most_remaining"] = "most_remaining"


class MostRemainingVictim(LimitedVictim):
    """Most tokens up to ``max_tokens`` first; among equals, the one that the scheduler ranks worst.

    Shortest remaining time first (Schrage, 1968), from its other end: those that are nearly done
    free their blocks soon by themselves. Without predicted lengths ``max_tokens`` is all that is
    known, so it says nothing where all requests have the same.
    """

    def score(self, group: SequenceGroup, /) -> int:
        return sum(group.max_length - sequence.num_tokens for sequence in group.live)
