"""A histogram of times with buckets of equal relative width, of which percentiles are read.

Relative error half a bucket: 0.5%, as in DDSketch (Masson, Rim and Lee, VLDB 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, floor, log

_WIDTH = log(1.01)
_LEAST = 1e-7
"""Seconds; all that is shorter falls into the bucket of this."""


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
    rank = share * (num - 1)
    below = floor(rank)
    low, high = _ranked(counts, below), _ranked(counts, min(below + 1, num - 1))
    return low + (high - low) * (rank - below)


def _ranked(counts: Mapping[int, int], rank: int) -> float:
    """Return the time that ``rank`` others are below."""
    for number in sorted(counts):
        rank -= counts[number]
        if rank < 0:
            return bucket_seconds(number)
    raise IndexError
