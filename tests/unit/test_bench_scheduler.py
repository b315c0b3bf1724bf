"""``bench scheduler``: what it prints, what it measures, and what must not grow with the queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import main
from paged_core.cli.options import SettingsArgs
from paged_core.plugins.registry import Registry
from paged_plugins.bench.scheduler_command import NULL_EXECUTOR, NullExecutor, SteadyState

pytestmark = pytest.mark.heavy


Capture = pytest.CaptureFixture[str]

SMALL = (
    *("--num-running", "5", "--num-waiting", "4", "--context", "40", "--block-size", "4"),
    *("--steps", "6", "--repeats", "2"),
)
SLOTS = ("scheduler", "queue_order", "block_allocator")
KEYS = {
    *SLOTS,
    *("num_running", "num_waiting", "context", "block_size"),
    *("us_per_step", "us_per_sequence", "repeats"),
}


def run(capsys: Capture, *argv: str, status: int = 0) -> str:
    assert main(["bench", "scheduler", *argv], {"PATH": ""}) == status
    out, err = capsys.readouterr()
    if status:
        assert "Traceback" not in err
        return err
    assert err == ""
    return out


def rows(capsys: Capture, *argv: str) -> list[dict[str, Any]]:
    found = json.loads(run(capsys, "--json", *SMALL, *argv))
    assert set(found) == {"machine", "rows"}
    assert {"cpu", "cores", "python"} <= set(found["machine"])
    listed: list[dict[str, Any]] = found["rows"]
    return listed


class TestCommand:
    def test_every_scheduler_with_and_without_prefix_caching(self, capsys: Capture) -> None:
        found = rows(capsys)
        schedulers = Registry.discover().of("scheduler")
        assert {"token_budget", "prefill_or_decode"} <= set(schedulers)
        assert [tuple(row[slot] for slot in SLOTS) for row in found] == [
            (name, "fcfs", allocator)
            for name in schedulers
            for allocator in ("hash_cached", "uncached")
        ]
        for row in found:
            assert set(row) == KEYS
            assert (row["num_running"], row["num_waiting"], row["repeats"]) == (5, 4, 2)
            assert (row["context"], row["block_size"]) == (40, 4)
            assert row["us_per_step"] > 0
            assert row["us_per_sequence"] == pytest.approx(row["us_per_step"] / 5, rel=0.01)

    def test_what_is_named_and_nothing_else(self, capsys: Capture) -> None:
        found = rows(
            capsys,
            *("--schedulers", "token_budget"),
            *("--queue-orders", "sjf", "--queue_orders", "fair,sjf"),
            *("--block-allocators", "contiguous", "--queue-orders", "sjf"),
        )
        assert [tuple(row[slot] for slot in SLOTS) for row in found] == [
            ("token_budget", "sjf", "contiguous"),
            ("token_budget", "fair", "contiguous"),
        ]

    def test_all(self, capsys: Capture) -> None:
        found = rows(capsys, "--all", "--schedulers", "prefill_or_decode")
        for slot in ("queue_order", "block_allocator"):
            assert {row[slot] for row in found} == set(Registry.discover().of(slot))
        assert {row["scheduler"] for row in found} == {"prefill_or_decode"}

    def test_table(self, capsys: Capture) -> None:
        text = run(capsys, *SMALL, "--schedulers", "token_budget")
        assert "us per sequence" in text
        (row, _) = [line.split() for line in text.splitlines() if " token_budget " in line]
        assert row[:5] == ["token_budget", "fcfs", "hash_cached", "5", "4"]

    def test_output(self, capsys: Capture, tmp_path: Path) -> None:
        file = tmp_path / "figures.json"
        text = run(capsys, *SMALL, "--schedulers", "token_budget", "--json", "--output", str(file))
        assert json.loads(file.read_text("utf-8")) == json.loads(text)
        missing = str(tmp_path / "missing" / "figures.json")
        assert "missing" in run(capsys, *SMALL, "--output", missing, status=2)

    def test_other_settings_apply(self, capsys: Capture) -> None:
        one = ("--schedulers", "token_budget", "--block-allocators", "hash_cached")
        assert rows(capsys, *one, "--evictor", "slru", "--preemption", "never")
        assert "no evictor is called 'lur'" in run(capsys, *one, "--evictor", "lur", status=2)

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (("--num-running", "0"), "num-running"),
            (("--schedulers", "token_buget"), "did you mean 'token_budget'"),
            (("--block-allocators", "cached"), "no block_allocator is called 'cached'"),
            (("--scheduler", "token_budget"), "use --schedulers"),
            (("--num-blocks", "9"), "has no effect here"),
            (("--block-allocators", "contiguous", "--preemption", "swap"), "may swap"),
        ],
    )
    def test_bad_arguments(self, capsys: Capture, argv: tuple[str, ...], message: str) -> None:
        assert message in run(capsys, *SMALL, *argv, status=2)


def build(scheduler: str, queue_order: str, num_waiting: int) -> Any:
    """An engine in which eight sequences run."""
    registry = Registry.discover().extended(NULL_EXECUTOR, plugin="bench_scheduler")
    state = SteadyState(
        num_running=8, num_waiting=num_waiting, context=24, block_size=4, steps=20, repeats=1
    )
    names = (scheduler, queue_order, "hash_cached")
    return state.build(SettingsArgs(registry, {"PATH": ""}), dict(zip(SLOTS, names, strict=True)))


class TestSteadyState:
    @pytest.mark.parametrize("scheduler", sorted(Registry.discover().of("scheduler")))
    def test_all_sequences_run_and_no_request_is_admitted(self, scheduler: str) -> None:
        engine = build(scheduler, "fcfs", 7)
        executor = engine.executor
        assert isinstance(executor, NullExecutor)
        lengths = {group.live[0].num_pending for group in list(engine.groups)[:8]}
        assert lengths == {1}
        for _ in range(20):
            engine.step()
        assert (executor.num_sequences, executor.num_tokens) == (160, 160)
        queues = engine.scheduler.queues()
        assert len(queues.running) == 8
        assert len(queues.waiting) == 7
        engine.close()
        assert engine.kv_cache.num_free == engine.kv_cache.num_blocks
