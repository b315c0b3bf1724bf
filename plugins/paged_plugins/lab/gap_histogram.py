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
    """Return the time that a share of all times (0 to 1) does not exceed; ``None``: no times."""
    remaining = share * sum(counts.values())
    for number in sorted(counts):
        remaining -= counts[number]
        if remaining <= 0:
            return bucket_seconds(number)
    return None
