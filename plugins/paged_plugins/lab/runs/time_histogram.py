"""A histogram of times with buckets of equal relative width, of which percentiles are read.

Relative error half a bucket: 0.5%, as in DDSketch (Masson, Rim and Lee, VLDB 2019).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import exp, floor, log

from paged_core.sequence import SequenceState

_WIDTH = log(1.01)
_LEAST = 1e-7
"""Seconds; all that is shorter falls into the bucket of this."""

BUCKETS = 10_000
"""The number of every bucket is above minus this, and below it."""


def bucket(seconds: float) -> int:
    """Return the number of the bucket that a time falls into."""
    return floor(log(max(seconds, _LEAST)) / _WIDTH)


def bucket_seconds(number: int) -> float:
    """Return the time in the middle of a bucket."""
    return exp((number + 0.5) * _WIDTH)


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return the percentile of a share (0 to 1), interpolated linearly between two times as numpy
    does; ``None``: no times.
    """
    num = sum(counts.values())
    if not num:
        return None
    numbers = sorted(counts)
    up_to = list(accumulate(counts[number] for number in numbers))
    rank = share * (num - 1)
    below = floor(rank)
    low, high = (
        bucket_seconds(numbers[bisect(up_to, each)]) for each in (below, min(below + 1, num - 1))
    )
    return low + (high - low) * (rank - below)


class TokenGaps:
    """Counts gaps into ``counts``, by bucket; a step costs a few operations on whole sets."""

    def __init__(self, counts: dict[int, int]) -> None:
        self._counts = counts
        self._advanced: list[SequenceState] = []
        """Sequences that gained a token in the last step that sampled any."""
        self._time = 0.0
        """When that was."""
        self._stalled: dict[SequenceState, float] = {}
        """Sequences that did not, and when they last gained one."""

    def step(self, advanced: Sequence[SequenceState], now: float) -> None:
        """A step ended ``now`` seconds from the start, in which these gained a token each."""
        if not advanced:
            return
        if advanced == self._advanced:
            self._add(now - self._time, len(advanced))
        else:
            self._compare(advanced, now)
        self._time = now

    def _compare(self, advanced: Sequence[SequenceState], now: float) -> None:
        before, after = set(self._advanced), set(advanced)
        common = before & after
        if common:
            self._add(now - self._time, len(common))
        if self._stalled:
            for sequence in after - before:
                last = self._stalled.pop(sequence, None)
                if last is not None:
                    self._add(now - last, 1)
        for sequence in before - after:
            if sequence.finish_reason is None:
                self._stalled[sequence] = self._time
        self._advanced = list(advanced)

    def _add(self, seconds: float, count: int) -> None:
        number = bucket(seconds)
        self._counts[number] = self._counts.get(number, 0) + count
