"""One answer of several engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import fields

from paged_core.engine.outcome import EngineMetrics


def sum_metrics(found: Collection[EngineMetrics]) -> EngineMetrics:
    """Return the sums of all counts, and of the seconds by phase."""
    names = [field.name for field in fields(EngineMetrics) if field.name != "seconds"]
    sums = {name: sum(getattr(each, name) for each in found) for name in names}
    seconds: Counter[str] = Counter()
    for each in found:
        seconds.update(each.seconds)
    return EngineMetrics(**sums, seconds=dict(seconds))
