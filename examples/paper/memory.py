"""What the slots of the cache hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from paged_plugins.lab.runs.run_record import RunRecord, StepSample


@dataclass(frozen=True)
class Shares:
    """Shares of all slots, averaged over time; they add up to 1."""

    held: float
    """Hold the state of a token."""
    reserved: float
    """Will hold one later."""
    internal: float
    """Belong to a sequence, and never will."""
    free: float
    """Belong to none, although requests wait."""


def while_requests_wait(records: Iterable[RunRecord], block_size: int) -> Shares:
    """Return what the slots held in the steps in which the cache was short.

    Raises:
        ValueError: it never was.
    """
    sums, seconds = [0.0] * 4, 0.0
    for sample in (each for record in records for each in record.steps if each.num_waiting):
        shares = astuple(_shares(sample, block_size))
        sums = [total + sample.seconds * share for total, share in zip(sums, shares, strict=True)]
        seconds += sample.seconds
    if not seconds:
        raise ValueError("no request waited for memory; raise --scale")
    return Shares(*(total / seconds for total in sums))


def _shares(sample: StepSample, block_size: int) -> Shares:
    slots = sample.num_blocks * block_size
    held, reserved = sample.held_tokens / slots, sample.reserved_tokens / slots
    free = sample.free_blocks / sample.num_blocks
    return Shares(held, reserved, 1 - held - reserved - free, free)
