"""How many processes share the replicas of a cluster."""

from __future__ import annotations

from paged_plugins.lab.tasks.workers import num_cores

_MOST = 4
"""Processes that are started unless more are asked for: between two arrivals they wait for the
slowest, and the more there are, the longer."""
_FEW = 16
"""Replicas of a process, below which to start it would not pay."""


def num_workers(num_replicas: int, asked: int | None) -> int:
    """Return how many processes there are; 1: only this one.

    Args:
        asked: by the user; ``None``: one for each core, but no more than pay.
    """
    if asked is not None:
        return min(asked, num_replicas)
    return max(1, min(num_cores(), _MOST, num_replicas // _FEW))
