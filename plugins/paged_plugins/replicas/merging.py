"""One answer of several engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

from paged_core.engine.outcome import EngineMetrics
from paged_core.plugins.registry import Registry


def sum_metrics(found: Collection[EngineMetrics]) -> EngineMetrics:
    """Return the sums of all counts, and of the seconds by phase."""
    names = [field.name for field in fields(EngineMetrics) if field.name != "seconds"]
    sums = {name: sum(getattr(each, name) for each in found) for name in names}
    seconds: Counter[str] = Counter()
    for each in found:
        seconds.update(each.seconds)
    return EngineMetrics(**sums, seconds=dict(seconds))


def merge_of(observer: str, registry: Registry) -> Callable[[Mapping[int, Any]], Any] | None:
    """Return what makes one report of those of several engines, if an observer has that."""
    component = registry.of("observers").get(observer)
    return None if component is None else getattr(component.load(), "merge_reports", None)
