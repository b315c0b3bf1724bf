"""Workloads, the roofline's arithmetic, and the commands that run them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import main
from paged_core.interfaces.layer import ModelSize
from paged_plugins.bench.device import Rates, least_seconds, measure_rates
from paged_plugins.bench.measurement import peak_memory, reset_peak
from paged_plugins.workloads.batch import NAMED, BatchWorkload, Draw, by_turn, drawn
from paged_plugins.workloads.request import WorkloadRequest, token_ids
from unit.bench_tasks import LAYER, runner

pytestmark = pytest.mark.heavy


Capture = pytest.CaptureFixture[str]

SIZE = ModelSize(
    layer_weights=1000, head_weights=500, layers=(replace(LAYER, dtype="bfloat16"),) * 2
)


def requests(*items: Draw) -> list[WorkloadRequest]:
    return BatchWorkload("listed", lambda _: items).requests()


def prompts(firsts: list[WorkloadRequest]) -> list[list[int]]:
    return [token_ids(request.prompt, None) for request, _ in by_turn(firsts)]


class TestWorkloads:
    @pytest.mark.parametrize("name", NAMED)
    def test_a_workload_is_the_same_every_time(self, name: str) -> None:
        assert NAMED[name].requests(2) == NAMED[name].requests(2)
        first, second = (by_turn(NAMED[name].requests(repeat)) for repeat in (0, 1))
        assert [follows for _, follows in first] == [follows for _, follows in second]

    def test_the_first_tokens_are_those_that_others_measure_with(self) -> None:
        assert prompts(NAMED["W2"].requests())[0][:4] == [6311, 6890, 663, 4242]
        assert [NAMED["W1"].requests()[place].num_new for place in (0, 1)] == [496, 437]

    def test_repeats_have_other_tokens_and_the_same_lengths(self) -> None:
        first, second = (prompts(NAMED["W1"].requests(turn)) for turn in (0, 1))
        assert list(map(len, first)) == list(map(len, second))
        assert all(one[0] != other[0] for one, other in zip(first, second, strict=True))

    def test_token_ids_fit_a_small_vocabulary(self) -> None:
        assert max(map(max, prompts(NAMED["W1"].requests(vocab_size=300)))) < 300

    def test_requests_share_a_prefix(self) -> None:
        found = drawn(3, (4, 4), (2, 5), num_shared=10).requests()
        assert len({tuple(prompt[:10]) for prompt in prompts(found)}) == 1
        assert len({tuple(prompt) for prompt in prompts(found)}) == 3
        assert all(request.num_new == 14 and 2 <= request.output <= 5 for request in found)


class TestRoofline:
    def test_reading_bounds_one_stream(self) -> None:
        rates = Rates(read=1e6, copy=1e6, sums=1e15)
        cache = SIZE.cache_bytes_per_token
        assert cache == 2 * 2 * 2 * 8 * 2
        expected = 2 * 1500 / 1e6 + (2 * 1500 + 4 * cache) / 1e6
        assert least_seconds(requests(([1, 2, 3], 2, None)), SIZE, rates, 0) == pytest.approx(
            expected
        )

    def test_a_later_turn_computes_what_it_adds(self) -> None:
        rates = Rates(read=1e6, copy=1e6, sums=1e15)
        cache = SIZE.cache_bytes_per_token
        items: list[Draw] = [([1, 2, 3], 2, None), ([4, 5], 1, 0)]
        alone = least_seconds(requests(items[0]), SIZE, rates, 0)
        both = least_seconds(
            requests(*items), SIZE, rates, 0
        )  # 4 of the first turn's 5 tokens are cached
        assert both - alone == pytest.approx((2 * 1500 + 4 * cache) / 1e6)
        rates = Rates(read=1e15, copy=1e15, sums=1e6)
        added = least_seconds(requests(*items), SIZE, rates, 0)
        added -= least_seconds(requests(items[0]), SIZE, rates, 0)
        attended = SIZE.attention_operations * (3 * 4 + 3 * 3 / 2)
        assert added == pytest.approx((2 * (1000 * 3 + 500) + attended) / 1e6)

    def test_arithmetic_bounds_long_prompts(self) -> None:
        rates = Rates(read=1e15, copy=1e15, sums=1e6)
        sums = 2 * (1000 * 10 + 500) + SIZE.attention_operations * 50
        assert least_seconds(requests(([1] * 10, 1, None)), SIZE, rates, 0) == pytest.approx(
            sums / 1e6
        )

    def test_a_shared_prefix_is_computed_once(self) -> None:
        rates = Rates(read=1e15, copy=1e15, sums=1e6)
        items = requests(([1] * 10, 1, None), ([1] * 10, 1, None))
        apart = least_seconds(items, SIZE, rates, 0)
        together = least_seconds(items, SIZE, rates, 8)
        saved = 2 * 1000 * 8 + SIZE.attention_operations * 32
        assert apart - together == pytest.approx(saved / 1e6)

    def test_rates_are_those_of_a_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("paged_plugins.bench.device._OTHER_BYTES", 1 << 20)
        monkeypatch.setattr("paged_plugins.bench.device._OTHER_SIZE", 64)
        rates = measure_rates("bfloat16", "cpu")
        assert rates.read > 0
        assert rates.copy > 0
        assert rates.sums > 0


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts memory so")
def test_memory_is_counted_anew() -> None:
    size = 1 << 28
    slack = size // 2  # the system counts in batches; other threads may allocate
    reset_peak()
    before = peak_memory()
    held = bytearray(b"x") * size  # written, so that it is resident
    assert peak_memory() > before + slack
    del held
    assert peak_memory() > before + slack, "what was given back counts until the reset"
    reset_peak()
    assert 0 < peak_memory() < before + slack


run = runner()
SMALL = ("--num-requests", "3", "--input-len", "4:9", "--output-len", "2:4", "--threads", "1")
KEYS = {
    *("workload", "model", "dtype", "requests", "elapsed_s", "output_tokens_per_s"),
    *("total_tokens_per_s", "ttft_ms", "tpot_ms", "peak_memory_bytes", "seconds", "roofline"),
}


class TestThroughput:
    def test_rows(self, capsys: Capture, tmp_path: Path) -> None:
        out = run(
            *(capsys, "throughput", *SMALL, "--repeats", "2", "--no-roofline", "--json"),
            *("--output", str(tmp_path / "rows"), "--trace", str(tmp_path / "trace")),
        )
        (row,) = [json.loads(line) for line in out.splitlines()]
        assert set(row) >= KEYS
        assert row["workload"] == "drawn"
        assert row["requests"] == 3
        assert row["dtype"] == "float32"
        assert set(row["ttft_ms"]) == set(row["tpot_ms"]) == {"p50", "p90", "p99"}
        assert set(row["seconds"]) >= {"schedule", "prepare", "model", "sample", "detokenise"}
        assert (tmp_path / "rows").read_text() == out
        assert_trace(tmp_path / "trace", row["steps"])

    def test_whether_the_cache_was_written_before(self, capsys: Capture) -> None:
        argv = ("throughput", *SMALL, "--num-blocks", "600", "--repeats", "1", "--no-roofline")
        fresh = json.loads(run(capsys, *argv, "--json"))
        written = json.loads(run(capsys, *argv, "--json", "--write-cache"))
        assert (fresh["cache_written"], written["cache_written"]) == (False, True)
        assert fresh["digest"] == written["digest"]
        assert "cache written before" in run(capsys, *argv, "--write-cache")

    def test_table(self, capsys: Capture) -> None:
        out = run(capsys, "throughput", *SMALL, "--repeats", "1", "--no-roofline")
        assert "drawn" in out
        assert "cache not written before" in out
        assert "milliseconds per step" in out
        assert "scheduler token_budget" in out

    def test_what_decided_the_result(self, capsys: Capture) -> None:
        pressed = ("--num-requests", "6", "--input-len", "40", "--output-len", "40")
        options = ("--shared-prefix", "32", "--num-blocks", "24", "--repeats", "1", "--no-roofline")
        victim = ("--victim", "most_blocks", "--preemption", "recompute")
        out = run(capsys, "throughput", *pressed, *options, *victim, "--json")
        row = json.loads(out)
        assert row["preemptions"] > 0
        assert row["cached_tokens"] >= 32
        assert row["components"]["victim"] == "most_blocks"
        assert row["components"]["scheduler"] == "token_budget"
        assert "cost_model" not in row["components"]

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (("--workload", "W9"), "no workload is called 'W9'"),
            (("--num-requests", "1", "--input-len", "9:3"), "--input-len is MIN:MAX"),
            (("--num-requests", "1", "--output-len", "x"), "--output-len is MIN:MAX"),
            (("--workload", "W1", "--max-model-len", "64"), "the engine serves 64"),
        ],
    )
    def test_errors(self, argv: tuple[str, ...], message: str, capsys: Capture) -> None:
        assert message in run(capsys, "throughput", *argv, status=2)

    def test_without_a_name_what_fits_is_run(self, capsys: Capture) -> None:
        argv = ("--executor", "memory", "--max-model-len", "330", "--repeats", "1", "--json")
        assert main(["bench", "throughput", *argv], {"PATH": ""}) == 0
        out, err = capsys.readouterr()
        rows = [json.loads(line) for line in out.splitlines()]
        assert [row["workload"] for row in rows] == ["W2", "W4", "W8"]
        assert rows[0]["dtype"] is rows[0]["roofline"] is None  # there is no model
        assert rows[0]["output_tokens"] == 16 * 128
        assert "left out W1, W3, W5, W6, W7: the engine serves requests of 330 tokens" in err


def assert_trace(path: Path, num_steps: int) -> None:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    assert all({"name", "ts", "dur", "pid", "tid"} <= set(bar) for bar in bars)
    steps = [bar for bar in bars if bar["name"].startswith("step ")]
    assert len(steps) >= num_steps
    assert {"schedule", "prepare", "model", "sample"} <= {bar["name"] for bar in bars}
    assert any(bar["name"].startswith("request ") for bar in bars)
