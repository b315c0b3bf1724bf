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


class StepEnd(NamedTuple):
    """The end of a step. In their order they are sorted as the events of the cluster."""

    time: float
    """Seconds from the start of the run."""
    repeat: int
    """How many events of the cluster at this very time came before, each of which let steps begin
    that took no time: one that plans nothing may."""
    replica: int
    num_tokens: int
    """By which the load of the replica changes: those drawn, without those of requests that ended."""
    ended: Sequence[EndedRequest]
