"""How many processes run tasks."""

from __future__ import annotations

import os
import sys

_FEW = 4
"""Tasks, up to which a process of their own would not pay."""


def num_workers(num_tasks: int, asked: int | None, *, is_real: bool) -> int:
    """Return how many runs there are at a time.

    Args:
        asked: by the user; ``None``: as many as cores, or 1 for few tasks.
        is_real: they are timed where they run, so that they must not share it.
    """
    if asked is not None:
        return max(1, min(asked, num_tasks))
    if is_real or num_tasks <= _FEW:
        return 1
    return min(num_cores(), num_tasks)


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
