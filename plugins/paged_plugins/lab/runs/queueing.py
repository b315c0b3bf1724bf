"""Growth of the queue of a run, which says whether it was given more than can be served; and where
the time of its requests went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from paged_plugins.lab.runs.run_record import MOST, RunRecord

_STEADY, _GROWING = 0.05, 0.1
"""Growth below which a queue is steady, and above which it grows: by so much the arrivals of a run
differ from their rate by chance."""
_POINTS, _LEAST = 30, 20
"""Moments at which the requests are counted; arrivals in that time at least."""
_FEW = 4
"""Runs from which on their spread is known."""
_Growth = Annotated[float, Field(ge=-1e6, le=1e6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Growth of the requests that have arrived and not ended, by the requests that arrive, with the
    ends of its 95% interval: at twice what can be served it is a half.
    """

    growth: _Growth
    low: _Growth
    high: _Growth

    @property
    def label(self) -> Literal["under", "near", "over"]:
        """``under``, ``near`` or ``over`` what can be served; ``near`` where a run cannot tell."""
        if self.low > 0 and self.growth > _GROWING:
            return "over"
        return "under" if self.high < _STEADY else "near"

    def __str__(self) -> str:
        ends = f"[{100 * self.low:+.0f}, {100 * self.high:+.0f}]"
        return (
            f"{self.label} what can be served: the queue grows by {100 * self.growth:.0f}% of "
            f"arrivals {ends}"
        )

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"label": self.label, **asdict(self)}

    @classmethod
    def of(cls, record: RunRecord) -> Saturation | None:
        """Return that of a run, from the median arrival to the 95th percentile; ``None``: requests
        arrive at once, or too few.

        The slope is that of least squares; its error is that of residuals which depend on the one
        before them, as those of a queue do.
        """
        arrivals = np.array([each.arrival for each in record.requests])
        ends = np.sort([each.finished for each in record.requests])
        if not len(arrivals):
            return None
        first, last = np.percentile(arrivals, (50, 95))
        num_arrivals = int(((arrivals > first) & (arrivals <= last)).sum())
        if num_arrivals < _LEAST or last <= first:
            return None
        at = np.linspace(first, last, _POINTS)
        arrived = np.searchsorted(np.sort(arrivals), at, "right")
        inside = arrived - np.searchsorted(ends, at, "right")
        time = np.linspace(-0.5, 0.5, _POINTS)
        slope = float((time * inside).sum() / (time**2).sum())
        rest = inside - inside.mean() - slope * time
        spread = float((rest**2).sum())
        follows = float((rest[1:] * rest[:-1]).sum()) / spread if spread else 0.0
        follows = min(max(follows, 0.0), 0.9)
        error = sqrt(spread / (_POINTS - 2) / float((time**2).sum()))
        half = _factor(_POINTS - 2) * error * sqrt((1 + follows) / (1 - follows)) / num_arrivals
        growth = slope / num_arrivals
        return cls(growth=growth, low=growth - half, high=growth + half)


def together(some: Sequence[Saturation]) -> Saturation | None:
    """Return the mean of several runs, of which each is independent; ``None``: there is none."""
    if not some:
        return None
    growths = [each.growth for each in some]
    growth, count = fmean(growths), len(some)
    if count < _FEW:
        half = fmean(each.high - each.low for each in some) / 2
    else:
        half = _factor(count - 1) * stdev(growths) / sqrt(count)
    return Saturation(growth=growth, low=growth - half, high=growth + half)


def _factor(freedom: int) -> float:
    """Return the standard errors in half of a 95% interval: Student's t, by the expansion of
    Abramowitz and Stegun, 26.7.5; within 1% from 3 degrees of freedom on.
    """
    x, n = 1.96, freedom
    second = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    third = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    return x + (x**3 + x) / 4 / n + second / n**2 + third / n**3


_Number = Annotated[float, Field(ge=-MOST, le=MOST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Means over the requests that were served, which add up to the time to their end: times in
    milliseconds, and what was computed for them, in tokens.
    """

    waiting: _Number
    """From arrival to admission, while requests waited at every replica."""
    imbalance: _Number
    """From arrival to admission, while none waited at another replica."""
    prefill: _Number
    """From admission to the first token."""
    decode: _Number
    """From there to the end."""
    uncached: _Number
    """Prompt tokens that the prefix cache did not serve."""
    cached: _Number
    recomputed: _Number
    """Tokens that had been computed before."""

    @classmethod
    def of(cls, record: RunRecord) -> Spent | None:
        """Return that of a run; ``None``: it does not tell when requests were admitted, or had
        their first tokens.
        """
        served = [each for each in record.requests if each.is_served]
        waits = [
            (each.replica, each.arrival, each.admitted)
            for each in served
            if each.admitted is not None and each.first_token is not None
        ]
        if not served or len(waits) < len(served):
            return None
        count = len(served)
        waiting, imbalance = _waits(waits, max(1, len(record.replicas)))
        decode = sum(each.finished - (each.first_token or 0.0) for each in served)
        both = sum(each.finished - each.arrival for each in served) - waiting - imbalance
        cached = sum(each.num_cached for each in served)
        return cls(
            waiting=1e3 * waiting / count,
            imbalance=1e3 * imbalance / count,
            prefill=1e3 * (both - decode) / count,
            decode=1e3 * decode / count,
            uncached=(sum(each.num_prompt for each in served) - cached) / count,
            cached=cached / count,
            recomputed=record.totals.recomputed_tokens / count,
        )


def _waits(waits: list[tuple[int, float, float]], num_replicas: int) -> tuple[float, float]:
    """Return seconds that requests waited in all, while some waited everywhere, and otherwise.

    Args:
        waits: replica, begin and end of each.
    """
    changes = [(begin, 1, replica) for replica, begin, _ in waits]
    changes += [(end, -1, replica) for replica, _, end in waits]
    queues: Counter[int] = Counter()
    now = waiting = imbalance = 0.0
    total = num_waiting = 0
    for at, change, replica in sorted(changes):
        if num_waiting == num_replicas:
            waiting += total * (at - now)
        else:
            imbalance += total * (at - now)
        now = at
        before = queues[replica] > 0
        queues[replica] += change
        total += change
        num_waiting += (queues[replica] > 0) - before
    return waiting, imbalance
