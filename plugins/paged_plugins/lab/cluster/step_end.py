"""What is known of a step of a replica once it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paged_plugins.lab.runs.run_record import RequestRecord


class EndedRequest(NamedTuple):
    """A request that ended with a step."""

    record: RequestRecord
    error: str | None
    """Why it failed, if it did."""
    answer: Sequence[int]
    """Tokens of its first sequence, if requests follow it."""


StepEnd = tuple[float, int, int, int, Sequence[EndedRequest]]
"""The end of a step; tuples, since there are millions of them. Sorted, they are in the order of the
events of a cluster.

0. Seconds from the start of the run.
1. How many events of the cluster at this very time came before, in each of which a step began that
   took no time, since it computed nothing.
2. The number of the replica.
3. By how many tokens its load changes: those drawn, without all those of the requests that ended.
4. The requests that ended.
"""
