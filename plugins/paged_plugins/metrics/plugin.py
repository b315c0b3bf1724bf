"""The plugin ``metrics``: observers that say how an engine does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.hooks import hookimpl


class StepLogSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.metrics.step_log.StepLog`."""

    name: Literal["step_log"] = "step_log"
    path: Path | None = Field(
        default=None, description="the file to append to; none: standard error"
    )


class MetricsSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.metrics.metrics.Metrics`."""

    name: Literal["metrics"] = "metrics"
    path: Path | None = Field(
        default=None, description="a file for all values, in Prometheus' format, when it closes"
    )
    model_name: str | None = Field(
        default=None,
        description="the label of all values; none: what a server calls it, or the setting",
    )


class BlockMapSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.metrics.block_map.BlockMap`."""

    name: Literal["block_map"] = "block_map"
    path: Path = Field(
        default=Path("blocks.jsonl"), description="the file; what it had is kept as PATH.1"
    )


class LiveViewSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.metrics.live_view.LiveView`."""

    name: Literal["live_view"] = "live_view"
    steps: int = Field(
        default=512, ge=1, le=10_000, description="how many of the last steps to keep"
    )


class SpansSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.metrics.spans.Spans`."""

    name: Literal["spans"] = "spans"
    service_name: str = Field(default="paged_core", description="what traces call the service")


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
    yield Component(
        "observers",
        LiveViewSettings,
        "paged_plugins.metrics.live_view:LiveView",
        summary="reports blocks, requests and steps of a running engine, as differences",
    )
    yield Component(
        "observers",
        SpansSettings,
        "paged_plugins.metrics.spans:Spans",
        check="paged_plugins.metrics.spans:unavailable_reason",
        summary="sends the phases of each request as OpenTelemetry spans",
    )
