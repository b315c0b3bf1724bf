"""The plugin ``metrics``: observers that say how an engine does."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.component import Component
from paged_core.hookspecs import hookimpl
from paged_plugins.metrics.settings import BlockMapSettings, MetricsSettings, StepLogSettings


@hookimpl
def paged_core_components() -> Iterator[Component]:
    yield Component(
        "observers",
        StepLogSettings,
        "paged_plugins.metrics.step_log:StepLog",
        summary="logs one event per step: counts, times, queue lengths, free blocks",
    )
    yield Component(
        "observers",
        MetricsSettings,
        "paged_plugins.metrics.metrics:Metrics",
        summary="counters, gauges and histograms under vLLM's names",
    )
    yield Component(
        "observers",
        BlockMapSettings,
        "paged_plugins.metrics.block_map:BlockMap",
        summary="writes which request owns which block over time",
    )
