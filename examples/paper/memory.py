"""Shares of the cache's slots by what they hold."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from paged_plugins.lab.runs.run_record import RunRecord


def while_requests_wait(
    records: Iterable[RunRecord], block_size: int
) -> tuple[float, float, float]:
    """Return shares of the slots in the steps in which the cache was short, averaged over time.

    Those that held the state of a token; that would hold one later; and the rest, which belonged to
    a sequence and never would, or to none, although requests waited.

    Raises:
        ValueError: it never was short.
    """
    samples = [each for record in records for each in record.steps if each.num_waiting]
    seconds = [each.seconds for each in samples]
    if not sum(seconds):
        raise ValueError("no request waited for memory; raise --scale")
    tokens = [(each.held_tokens, each.reserved_tokens) for each in samples]
    slots = [[each.num_blocks * block_size] for each in samples]
    held, reserved = np.average(np.divide(tokens, slots), axis=0, weights=seconds).tolist()
    return held, reserved, 1 - held - reserved
