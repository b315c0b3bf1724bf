"""Calls of the benchmarks to ``torch.cuda``, over fakes in the place of a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paged_core.interfaces.attention import AttentionBackend, AttentionBatch
from paged_core.interfaces.layer import LayerSpec
from paged_plugins.bench import attention_grid
from paged_plugins.bench.attention_case import AttentionCase
from paged_plugins.bench.attention_grid import AttentionGrid, AttentionRun
from paged_plugins.bench.device import Rates, seconds_on
from unit.bench_tasks import LAYER

pytestmark = pytest.mark.heavy


class Event:
    def __init__(self, notes: list[str], *, enable_timing: bool) -> None:
        assert enable_timing
        self._notes = notes

    def record(self) -> None:
        self._notes.append("record")

    def synchronize(self) -> None:
        self._notes.append("wait")

    def elapsed_time(self, end: Event) -> float:
        assert isinstance(end, Event)
        return 1.5


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls that the device received."""
    noted: list[str] = []

    @contextmanager
    def device(chosen: Any) -> Iterator[None]:
        assert torch.device(chosen) == torch.device("cuda:0")
        yield

    @contextmanager
    def capture(graph: Any) -> Iterator[None]:
        noted.append("capture")
        yield
        noted.append("captured")

    fakes: dict[str, Any] = {
        "device": device,
        "synchronize": lambda: noted.append("synchronize"),
        "Event": lambda **options: Event(noted, **options),
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: noted.append("replay")),
        "graph": capture,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return noted


class Plain(AttentionBackend):
    """A backend that cannot be captured."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def check(self, layer: LayerSpec, /) -> str | None:
        return None

    def plan(self, batch: AttentionBatch, /) -> Any:
        self.notes.append("plan")
        return "plan"

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        return self

    def forward(self, query: Any, key: Any, value: Any, plan: Any, /) -> Any:
        self.notes.append(f"forward {plan}")


class Capturable(Plain):
    def plan_capture(self, batch: AttentionBatch, /) -> Any:
        return "capturable"

    def update_capture(self, plan: Any, batch: AttentionBatch, /) -> None:
        self.notes.append("update")


def run_of(backend: Plain, text: str = "2x5") -> AttentionRun:
    """A run of one layer, whose queries are on a device that is not there."""
    batch, _ = AttentionCase.parse(text).batch(LAYER, 0)
    rows: Any = SimpleNamespace(device=torch.device("cuda:0"))
    layers: list[Any] = [backend]
    return AttentionRun(backend, batch, layers, rows, rows, rows)


def test_time_is_taken_between_events_of_an_idle_device(notes: list[str]) -> None:
    assert seconds_on("cuda:0", lambda: notes.append("work")) == 0.0015
    assert notes == ["synchronize", "record", "work", "record", "wait"]


def test_layers_are_captured_after_they_ran_once(notes: list[str]) -> None:
    replay = run_of(Capturable(notes)).captured()
    assert replay is not None
    replay()
    forward = "forward capturable"
    expected = ["update", forward, "synchronize", "capture", forward, "captured", "replay"]
    assert notes == expected


def test_what_cannot_be_captured_is_not(notes: list[str]) -> None:
    assert run_of(Plain(notes)).captured() is None
    assert run_of(Capturable(notes), "2x0+5").captured() is None
    assert not notes


def test_shares_are_those_of_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    backend = Capturable(notes)
    run = run_of(backend)
    replaying = {"replay": lambda: notes.append("replay")}
    monkeypatch.setattr(AttentionRun, "make", lambda *_, **__: run)
    monkeypatch.setattr(AttentionRun, "captured", lambda _: replaying["replay"])
    took = {True: 0.004, False: 0.008}
    monkeypatch.setattr(
        attention_grid,
        "seconds_on",
        lambda _, work: (work(), took[work is replaying["replay"]])[1],
    )
    case = AttentionCase.parse("2x5")
    rates = Rates(read=1e6, copy=1e6, sums=1e6)
    grid = AttentionGrid(0, 2, 1, rates)
    (row,) = grid.rows(case, LAYER, {"made up": backend}, [], lambda: None)
    assert notes == ["plan", "forward plan", "replay"] * 2
    assert (row["us_per_layer"], row["us_per_layer_captured"]) == (4000.0, 2000.0)
    assert row["share_of_copy"] == pytest.approx(case.read_bytes(LAYER, 0) / 0.002 / 1e6)
    assert row["share_of_matmul"] == pytest.approx(case.operations(LAYER) / 0.002 / 1e6)
