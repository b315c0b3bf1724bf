"""Options of the observers; imports little, because ``plugins`` imports it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from paged_core.component import ComponentSettings


class StepLogSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.metrics.step_log.StepLog`."""

    name: Literal["step_log"] = "step_log"
    path: Path | None = Field(
        default=None, description="the file to write; it is overwritten; none: standard error"
    )


class MetricsSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.metrics.metrics.Metrics`."""

    name: Literal["metrics"] = "metrics"
    path: Path | None = Field(
        default=None, description="a file for all values, in Prometheus' format, when it closes"
    )


class BlockMapSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.metrics.block_map.BlockMap`."""

    name: Literal["block_map"] = "block_map"
    path: Path = Field(
        default=Path("blocks.jsonl"), description="the file to write; it is overwritten"
    )
