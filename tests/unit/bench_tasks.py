"""Tasks for the peers of ``bench compare``."""

from __future__ import annotations

from typing import Any

from paged_plugins.bench.peers import Task


def bench_task(model: object = "m", **changes: Any) -> Task:
    """Return a small task in float32; ``changes`` are fields that differ."""
    fields: dict[str, Any] = {
        "dtype": "float32",
        "threads": 1,
        "max_model_len": 64,
        "longest_request": 64,
        "cache_gib": 1,
        "settings": {},
        **changes,
    }
    return Task(model=str(model), **fields)
