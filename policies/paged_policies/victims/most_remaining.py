"""The group that has the most left to generate."""

from __future__ import annotations

from typing import Literal

from paged_core.engine.contexts import VictimContext
from paged_core.sequence import SequenceGroup
from paged_policies.job_size import expected_end
from paged_policies.victims.preemption_limit import LimitedSettings, LimitedVictim


class MostRemainingSettings(LimitedSettings):
    """Options of :class:`MostRemainingVictim`."""

    name: Literal["most_remaining"] = "most_remaining"


class MostRemainingVictim(LimitedVictim):
    """Most tokens to the expected end, or to ``max_tokens``; among equals, the one ranked worst.

    Shortest remaining time first (Schrage, 1968), from its other end: those that are nearly done
    free their blocks soon by themselves. Where the ``length_predictor`` knows nothing,
    ``max_tokens`` is all that is known, which says nothing where all requests have the same.
    """

    def __init__(self, options: MostRemainingSettings, context: VictimContext, /) -> None:
        super().__init__(options, context)
        self._lengths = context.length_predictor

    def score(self, group: SequenceGroup, /) -> float:
        end = expected_end(group, self._lengths)
        return sum(end - sequence.num_tokens for sequence in group.live)
