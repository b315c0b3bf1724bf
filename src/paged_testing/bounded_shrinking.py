"""Shrinks a failing example a little, and not for minutes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

MAX_RUNS = 60
"""Examples that are tried after the first that fails."""


def bounded_shrinking(property_: Callable[..., None]) -> Callable[..., None]:
    """Return a property that, once it has failed, looks at a bounded number of other examples.

    Those beyond pass unseen, so that Hypothesis finds nothing smaller and reports what it has.
    """
    failed: set[str] = set()
    num_runs = 0

    @wraps(property_)
    def bounded(**values: Any) -> None:
        nonlocal num_runs
        example = repr(values)
        if failed and example not in failed:
            num_runs += 1
            if num_runs > MAX_RUNS:
                return
        try:
            property_(**values)
        except BaseException:
            failed.add(example)
            raise

    return bounded
