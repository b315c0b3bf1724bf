"""Benchmarks on a CUDA device: events, graphs, the profiler, and libraries called without pages."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from paged_core.cli import main
from paged_core.interfaces.layer import LayerSpec
from paged_plugins.bench import attention_case
from paged_plugins.bench.attention_case import BARE, AttentionCase
from paged_plugins.bench.device import seconds_on

Capture = pytest.CaptureFixture[str]
LAYER = LayerSpec(
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    scale=64**-0.5,
    dtype="bfloat16",
    device="cuda:0",
    block_size=16,
)


def bench(capsys: Capture, *argv: str) -> Any:
    assert main(["bench", *argv, "--device", "cuda", "--json"], {"PATH": ""}) == 0
    return json.loads(capsys.readouterr().out)


def test_time_is_that_of_the_device() -> None:
    short, long = (
        seconds_on("cuda:0", lambda cycles=cycles: torch.cuda._sleep(cycles))  # type: ignore[misc]
        for cycles in (1_000_000, 20_000_000)
    )
    assert 5 < long / short < 30


@pytest.mark.parametrize("cache", ["auto", "fp8_e4m3"])
def test_every_component_attends(cache: str, capsys: Capture) -> None:
    sizes = ("--batch", "5x70", "--batch", "2x0+33", "--heads", "8:2:64", "--repeats", "2")
    found = bench(capsys, "attention", *sizes, "--layers", "2", "--kv-cache-dtype", cache)
    assert found["machine"]["gpu"]
    for row in found["rows"]:
        assert "error" not in row
        assert row["share_of_copy"] > 0
        if row["component"] in {"triton", "cuda"} and row["new"] == 1:
            assert row["us_per_layer_captured"] > 0


@pytest.mark.parametrize("text", ["3x0+40", "3x25+15", "3x64+1"])
@pytest.mark.parametrize("library", BARE[1:], ids=lambda library: library.name)
def test_libraries_compute_the_same(
    library: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if problem := library.problem(LAYER):
        pytest.skip(problem)
    case = AttentionCase.parse(text)
    rows = attention_case.random_rows(case, LAYER, case.length)
    monkeypatch.setattr(attention_case, "random_rows", lambda *_: rows)
    expected = BARE[0].run(case, LAYER)()
    assert isinstance(expected, torch.Tensor)
    found: Any = library.run(case, LAYER)()
    out = found[0] if isinstance(found, tuple) else found
    torch.testing.assert_close(out, expected.transpose(1, 2).flatten(0, 1), atol=2e-2, rtol=2e-2)


def test_what_the_gpu_does_in_a_decode_step_is_seen(capsys: Capture) -> None:
    sizes = ("--batch-size", "4", "--context", "32", "--steps", "4")
    found = bench(capsys, "decode", *sizes)
    assert 0 <= found["gpu_idle_share"] < 1
    assert found["kernels"]
    assert not found["graphs"].startswith("none"), found["graphs"]
    assert found["ratio"] > 0
