"""First-party observers pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paged_testing import ObserverConformance
from unit.span_collector import collecting


class TestDecisionLog(ObserverConformance):
    component = "decision_log"

    def table(self, folder: Path) -> dict[str, Any]:
        return {"name": "decision_log", "path": str(folder / "decisions.jsonl")}


class TestChromeTrace(ObserverConformance):
    component = "chrome_trace"

    def table(self, folder: Path) -> dict[str, Any]:
        return {"name": "chrome_trace", "path": str(folder / "trace.json")}


class TestStepLog(ObserverConformance):
    component = "step_log"

    def table(self, folder: Path) -> dict[str, Any]:
        return {"name": "step_log", "path": str(folder / "steps.jsonl")}


class TestMetrics(ObserverConformance):
    component = "metrics"

    def table(self, folder: Path) -> dict[str, Any]:
        return {"name": "metrics", "path": str(folder / "metrics.prom")}


class TestBlockMap(ObserverConformance):
    component = "block_map"

    def table(self, folder: Path) -> dict[str, Any]:
        return {"name": "block_map", "path": str(folder / "blocks.jsonl")}


class TestLiveView(ObserverConformance):
    component: ClassVar[Mapping[str, Any]] = {"name": "live_view", "steps": 30}
    bytes_free = 200 << 10
    """Room for the ends of 1,024 requests."""


class TestBlockEvents(ObserverConformance):
    component: ClassVar[Mapping[str, Any]] = {"name": "block_events", "num_kept": 30}


class TestSpans(ObserverConformance):
    component = "spans"
    bytes_free = 2 << 20
    """Room for the queue of 2,048 spans that the SDK has."""

    @pytest.fixture(autouse=True)
    def collector(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with collecting() as (address, _):
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
            monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # it is emptied while it is watched
            yield
