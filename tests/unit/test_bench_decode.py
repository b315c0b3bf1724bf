"""``bench decode``: steps in which all sequences decode, and what a GPU did in them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paged_core import LLM
from paged_core.errors import SettingsError
from paged_core.interfaces.runner import SupportsModelSize
from paged_plugins.bench import decode_command
from paged_plugins.bench.decode_command import DecodeSteps, GpuActivity, gpu_activity
from paged_plugins.bench.device import Rates
from unit.bench_tasks import runner

pytestmark = pytest.mark.heavy


Capture = pytest.CaptureFixture[str]

SMALL = ("--batch-size", "3", "--context", "20", "--steps", "2", "--num-blocks", "40")
STEPS = DecodeSteps(batch_size=2, context=9, steps=2, repeats=1, temperature=0.6)
run = runner("decode")


def test_a_step_is_compared_with_what_its_bytes_need(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = Rates(read=1e9, copy=5e8, sums=1e9)
    monkeypatch.setattr(decode_command, "measure_rates", lambda *_: rates)
    file = tmp_path / "found.json"
    found: dict[str, Any] = json.loads(run(capsys, *SMALL, "--json", "--output", str(file)))
    assert json.loads(file.read_text()) == found
    assert (found["batch_size"], found["context"], found["temperature"]) == (3, 20, 0)
    assert found["ms_per_step"] > 0
    # 6 layers of 2 key/value heads of 32 numbers; the middle of the steps is 11 tokens in
    token = 6 * 2 * 2 * 32 * (4 if found["dtype"] == "float32" else 2)
    assert 3 * (20 + 8) * token < found["cache_bytes"] < 3 * (20 + 20) * token
    least = 1000 * (found["weight_bytes"] + found["cache_bytes"]) / 1e9
    assert found["least_ms"] == pytest.approx(least, abs=1e-4)
    assert found["ratio"] == pytest.approx(found["ms_per_step"] / least, abs=2e-3)
    assert found["gpu_idle_share"] is found["kernels"] is None
    assert {"model", "sample", "schedule"} <= set(found["ms_by_phase"])


def test_a_table(capsys: Capture) -> None:
    out = run(capsys, *SMALL, "--no-roofline")
    assert "milliseconds per step" in out
    assert "GPU idle" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--scheduler.max-num-seqs", "2"), "did not decode together"),
        (("--context", "2000"), "the engine serves"),
        (("--executor", "memory"), "this executor runs no model"),
    ],
)
def test_what_is_refused(capsys: Capture, argv: tuple[str, ...], said: str) -> None:
    assert said in run(capsys, *SMALL, *argv, status=2)


def test_what_a_gpu_did_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    def profiled(work: Any) -> GpuActivity:
        work()
        steps.append(llm.engine.num_steps)
        return GpuActivity((("gemm", 0.0, 6.0), ("copy", 8.0, 10.0)))

    monkeypatch.setattr(decode_command, "gpu_activity", profiled)
    with LLM(model="demo", num_blocks=40) as llm:
        executor = llm.engine.executor
        assert isinstance(executor, SupportsModelSize)
        size = executor.model_size()
        layers = tuple(replace(layer, device="cuda:0") for layer in size.layers)
        found = STEPS.measure(llm, replace(size, layers=layers))
    assert len(steps) == 1
    assert found["gpu_idle_share"] == 0.2
    us = 1000 * found["ms_per_step"] * decode_command._PROFILED
    assert found["gpu_idle_share_unprofiled"] == pytest.approx(1 - 8 / us, abs=1e-3)
    assert [kernel["name"] for kernel in found["kernels"]] == ["gemm", "copy"]


def test_sequences_that_are_preempted_do_not_decode_together() -> None:
    with LLM(model="demo", block_size=4, num_blocks=7) as llm:
        executor = llm.engine.executor
        assert isinstance(executor, SupportsModelSize)
        with pytest.raises(SettingsError, match="raise num_blocks"):
            STEPS.measure(llm, executor.model_size())
        assert not llm.engine.has_unfinished


class TestGpuActivity:
    def test_time_without_a_kernel_is_idle(self) -> None:
        spans = [("a", 10.0, 20.0), ("b", 15.0, 25.0), ("a", 30.0, 40.0), ("c", 31.0, 32.0)]
        activity = GpuActivity(tuple(spans))
        assert activity.idle_share == pytest.approx(5 / 30)
        assert activity.longest(2, 2) == [
            {"name": "a", "us": 10.0, "calls": 1.0},
            {"name": "b", "us": 5.0, "calls": 0.5},
        ]
        assert activity.idle_share_of(50.0) == pytest.approx(0.5)
        assert activity.idle_share_of(20.0) == 0.0
        assert GpuActivity(()).idle_share is GpuActivity(()).idle_share_of(1.0) is None
        assert GpuActivity((("a", 1.0, 1.0),)).idle_share == 0.0

    def test_a_trace_is_read(self) -> None:
        events = [
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2},
            {"ph": "X", "cat": "gpu_memcpy", "name": "copy", "ts": 4, "dur": 1},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9},
            {"ph": "M", "name": "process_name"},
        ]
        activity = GpuActivity.from_trace(events)
        assert activity.intervals == (("gemm", 1.0, 3.0), ("copy", 4.0, 5.0))

    def test_on_a_cpu_there_is_none(self) -> None:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        assert gpu_activity(lambda: torch.ones(2) + 1).idle_share is None
