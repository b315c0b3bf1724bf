"""Sums up where the time of the requests of a run went."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from paged_plugins.lab.runs.run_record import MOST, RunRecord

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
