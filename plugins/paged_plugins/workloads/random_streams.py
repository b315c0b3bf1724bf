"""Streams of random numbers, one for each aspect of a workload."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import exp, log, log1p, sqrt
from random import Random
from statistics import NormalDist
from typing import Generic, TypeVar

T = TypeVar("T")
_NORMAL = NormalDist()


def stream(seed: int, aspect: str) -> Random:
    """Return the stream of an aspect, independent of all others.

    Equal seeds give equal workloads in every process and version, and a change of one aspect (the
    rate of arrivals, say) leaves the numbers of the others as they were, which are then common to
    the runs that are compared. Therefore only ``random()`` of what is returned is used: Python
    promises that it gives the same numbers in every version, and promises it for nothing else.
    """
    return Random(f"{aspect} {seed}")  # a string is hashed with SHA-512: no seeds are neighbours


class Choice(Generic[T]):
    """Draws one of several values, each with a chance in proportion to its weight."""

    def __init__(self, weights: Mapping[T, float]) -> None:
        self._values = list(weights)
        self._limits = list(accumulate(weights.values()))

    def __call__(self, share: float) -> T:
        """Return the value at a share (0 to 1, below 1) of all weights."""
        place = bisect_right(self._limits, share * self._limits[-1], hi=len(self._values) - 1)
        return self._values[place]


def distinct(chance: Random, values: Sequence[T], count: int) -> list[T]:
    """Return ``count`` of the values in random order, none of them twice."""
    pool = list(values)
    for place in range(count):
        other = place + int(chance.random() * (len(pool) - place))
        pool[place], pool[other] = pool[other], pool[place]
    return pool[:count]


def gamma(chance: Random, shape: float) -> float:
    """Return a gamma variate of mean ``shape`` and scale 1.

    Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); a shape below 1 by
    their power of a uniform variate.
    """
    if shape < 1:
        return gamma(chance, shape + 1) * exp(log1p(-chance.random()) / shape)
    d = shape - 1 / 3
    c = 1 / sqrt(9 * d)
    while True:
        x = _NORMAL.inv_cdf(1 - chance.random() or 0.5)
        v = (1 + c * x) ** 3
        if v > 0 and log(1 - chance.random()) < x * x / 2 + d - d * v + d * log(v):
            return d * v
