"""Observers for people and monitors: ``step_log``, ``metrics``, ``block_map``."""

from __future__ import annotations

import json
from collections import Counter as Count
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.engines import finish, request

from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.errors import SettingsError
from paged_core.ids import BlockId
from paged_core.interfaces.observer import BlockEvent
from paged_core.plugins.registry import Registry
from paged_core.request import FinishReason
from paged_core.settings.schema import settings_class
from paged_core.step import StepInput
from paged_plugins.block_history import BlockHistory
from paged_plugins.instruments import Counter, Gauge, Histogram, exposition
from paged_plugins.metrics.metrics import Metrics, length_bounds
from paged_testing.engines import build_memory_engine, serve
from paged_testing.workloads import SITUATIONS, Situation, Workload, simple_request

REGISTRY = Registry.discover()


def watched(observer: dict[str, Any] | str, **settings: Any) -> Engine:
    return build_memory_engine(REGISTRY, observers=[observer], **settings)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_what_an_engine_wrote_stays_where_another_follows_it(tmp_path: Path) -> None:
    for name in ("step_log", "decision_log", "block_map"):
        path = tmp_path / name
        for _ in range(2):  # the first one is lost: never closed
            engine = watched({"name": name, "path": str(path)})
            engine.add(simple_request("A", 6, 2))
            finish(engine)
        written = read_lines(path)
        if name == "step_log":
            assert [each["step"] for each in written] == [0, 1, 0, 1]
        else:
            assert read_lines(tmp_path / f"{name}.1") == written


class TestStepLog:
    def test_one_event_per_step(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "steps.jsonl"
        engine = watched({"name": "step_log", "path": str(path)})
        engine.add(simple_request("A", 6, 2))
        engine.add(simple_request("B", 5, 1))
        finish(engine)
        engine.close()
        first, second = read_lines(path)
        assert first["event"] == second["event"] == "step_applied"
        assert (first["step"], first["num_requests"], first["num_tokens"]) == (0, 2, 11)
        assert (first["num_admitted"], first["num_finished"]) == (2, 1)
        assert (second["time"], second["num_tokens"], second["num_running"]) == (1.0, 1, 0)
        assert second["free_blocks"] == 64
        assert set(first["phases"]) >= {"schedule", "apply"}

    def test_on_standard_error_by_default(self, capsys: pytest.CaptureFixture[str]) -> None:
        engine = watched("step_log")
        engine.step()
        engine.close()
        assert json.loads(capsys.readouterr().err)["event"] == "step_applied"

    def test_a_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for name in ("step_log", "metrics", "block_map"):
            with pytest.raises(SettingsError, match=rf"{name}\.path: .*file/x cannot be written: "):
                watched({"name": name, "path": str(tmp_path / "file" / "x")})


class TestInstruments:
    @given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 4))))
    def test_a_histogram_counts_what_is_at_most_its_bounds(
        self, observed: list[tuple[float, int]]
    ) -> None:
        histogram = Histogram("a", "A.", [-1, 0, 2.5])
        for value, count in observed:
            histogram.observe(value, count)
        values = [value for value, count in observed for _ in range(count)]
        snapshot = histogram.snapshot()
        assert snapshot["count"] == len(values)
        assert snapshot["sum"] == pytest.approx(sum(values))
        assert snapshot["buckets"] == {
            bound: sum(value <= bound for value in values) for bound in (-1, 0, 2.5)
        }

    def test_bounds_of_lengths(self) -> None:
        assert length_bounds(64) == [1, 2, 5, 10, 20, 50]
        assert length_bounds(1) == [1]

    def test_prometheus_reads_what_is_written(self) -> None:
        parser = pytest.importorskip("prometheus_client.parser")
        odd = 'a "b" \\ c\nd'
        counter, histogram = Counter("x:c", odd, label="why"), Histogram("h", "H.", [0.5, 2])
        counter.add(3, odd)
        for value in (0.5, 1, 7):
            histogram.observe(value)
        text = exposition([counter, Gauge("g", "G."), histogram], {"model_name": odd})
        families = {each.name: each for each in parser.text_string_to_metric_families(text)}
        assert {name: each.type for name, each in families.items()} == {
            "x:c": "counter",
            "g": "gauge",
            "h": "histogram",
        }
        (sample,) = families["x:c"].samples
        assert (sample.labels, sample.value) == ({"model_name": odd, "why": odd}, 3)
        buckets = {each.labels.get("le"): each.value for each in families["h"].samples}
        assert (buckets["0.5"], buckets["2.0"], buckets["+Inf"]) == (1, 2, 3)


class TestMetrics:
    """On a virtual clock: a step takes 0.5 s, and 0.25 s for each token of a prompt."""

    costs = ("per_prefill_pair", "per_decode_sequence", "per_context_token", "per_copied_block")

    def engine(self, **settings: Any) -> tuple[Engine, Metrics]:
        cost_model = {"name": "linear", "fixed": 0.5, "per_prefill_token": 0.25}
        values = {
            "executor": "simulated",
            "cost_model": {**cost_model, **dict.fromkeys(self.costs, 0.0)},
            "num_blocks": 32,
            "block_size": 4,
            "max_model_len": 64,
            "observers": ["metrics"],
            **settings,
        }
        engine = build_engine(settings_class(REGISTRY)(**values), REGISTRY)
        (metrics,) = engine.observers
        assert isinstance(metrics, Metrics)
        return engine, metrics

    def test_what_one_request_leaves(self) -> None:
        engine, metrics = self.engine()
        engine.add(request("A", range(10), max_tokens=3))
        finish(engine)
        values = metrics.snapshot()
        expected = {
            "vllm:prompt_tokens": 10,
            "vllm:generation_tokens": 3,
            "vllm:request_success": {**dict.fromkeys(FinishReason, 0), "length": 1},
            "vllm:prefix_cache_queries": 10,
            "vllm:prefix_cache_hits": 0,
            "vllm:num_requests_running": 0,
            "vllm:kv_cache_usage_perc": 0,
        }
        assert {name: values[name] for name in expected} == expected
        sums = {
            "vllm:time_to_first_token_seconds": (1, 3.0),
            "vllm:inter_token_latency_seconds": (2, 1.0),
            "vllm:request_time_per_output_token_seconds": (1, 0.5),
            "vllm:e2e_request_latency_seconds": (1, 4.0),
            "vllm:request_queue_time_seconds": (1, 0.0),
            "vllm:request_inference_time_seconds": (1, 4.0),
            "vllm:request_prefill_time_seconds": (1, 3.0),
            "vllm:request_decode_time_seconds": (1, 1.0),
            "vllm:request_prompt_tokens": (1, 10),
            "vllm:request_generation_tokens": (1, 3),
            "vllm:request_params_max_tokens": (1, 3),
            "vllm:request_params_n": (1, 1),
            "vllm:iteration_tokens_total": (3, 12),
        }
        assert {name: (values[name]["count"], values[name]["sum"]) for name in sums} == sums

    def test_while_requests_run(self) -> None:
        engine, metrics = self.engine(scheduler={"max_num_seqs": 1})
        for name in "AB":
            engine.add(request(name, range(10), max_tokens=3))
        engine.step()
        values = metrics.snapshot()
        assert values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == 1
        assert values["vllm:kv_cache_usage_perc"] == 3 / 32
        finish(engine)
        assert metrics.snapshot()["vllm:prefix_cache_hits"] == 8
        assert metrics.snapshot()["vllm:request_queue_time_seconds"]["sum"] == 4.0

    def test_sequences_of_one_request_have_gaps_of_their_own(self) -> None:
        engine, metrics = self.engine()
        engine.add(request("A", range(4), n=3, temperature=1.0, max_tokens=3))
        finish(engine)
        values = metrics.snapshot()
        assert values["vllm:generation_tokens"] == 9
        assert values["vllm:inter_token_latency_seconds"]["count"] == 6
        assert values["vllm:inter_token_latency_seconds"]["buckets"][0.5] == 6

    def test_requests_that_never_ran(self) -> None:
        engine, metrics = self.engine()
        engine.add(request("A", range(4), max_tokens=3))
        engine.abort("A")
        engine.close()
        values = metrics.snapshot()
        assert {k: n for k, n in values["vllm:request_success"].items() if n} == {"abort": 1}
        assert values["vllm:time_to_first_token_seconds"]["count"] == 0

    @pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
    def test_agree_with_what_the_engine_counts(self, situation: Situation) -> None:
        engine = watched("metrics", **situation.values({}))
        (metrics,) = (each for each in engine.observers if isinstance(each, Metrics))
        serve(engine, situation.workload)
        values, counted = metrics.snapshot(), engine.metrics
        assert sum(values["vllm:request_success"].values()) == counted.num_finished
        if not any(each.sampling.best_of for _, each in situation.workload.requests):
            assert values["vllm:generation_tokens"] == counted.num_generated_tokens
        assert values["vllm:num_preemptions"] == counted.num_preemptions
        assert values["vllm:prefix_cache_hits"] == counted.num_cached_tokens
        assert values["paged_core:evicted_blocks"] == counted.num_evictions

    def test_a_file_for_monitors(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.prom"
        engine, metrics = self.engine(observers=[{"name": "metrics", "path": str(path)}])
        engine.add(request("A", range(4), max_tokens=3))
        finish(engine)
        engine.close()
        assert path.read_text() == metrics.text()
        assert 'vllm:generation_tokens_total{model_name="demo",engine="0"} 3.0' in metrics.text()


class TestBlockMap:
    @pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
    def test_says_who_held_what_in_every_step(self, situation: Situation, tmp_path: Path) -> None:
        path = tmp_path / "blocks.jsonl"
        engine = watched({"name": "block_map", "path": str(path)}, **situation.values({}))
        tables = dict(seen_tables(engine, situation.workload))
        engine.close()
        history = BlockHistory(path)
        assert tables
        for step, table in tables.items():
            assert Count((s.request, s.index, s.block) for s in history.held(step)) == table

    def test_blocks_and_their_owners(self, tmp_path: Path) -> None:
        path = tmp_path / "blocks.jsonl"
        engine = watched({"name": "block_map", "path": str(path)}, num_blocks=8)
        engine.add(request("A", range(6), max_tokens=4))
        finish(engine)
        engine.add(request("B", range(5), max_tokens=1, n=2, temperature=1.0))
        finish(engine)
        engine.close()
        history = BlockHistory(path)
        assert (history.num_blocks, history.block_size, history.requests) == (8, 4, ["A", "B"])
        first, second, third = history.blocks("A")
        assert [(span.index, span.start, span.end) for span in (first, second, third)] == [
            (0, 0, 4),
            (1, 0, 4),
            (2, 3, 4),
        ]
        assert history.owners(first.block, 2) == [first]
        shared = history.owners(first.block, 4)
        assert [(span.request, span.sequence, span.index) for span in shared] == [("B", 0, 0)]
        assert history.of_block(first.block) == (first, *shared)
        assert history.owners(first.block, 9) == []
        assert history.blocks("C") == ()
        assert history.times[4] == 4.0

    def test_a_request_that_is_aborted_holds_nothing_in_the_next_step(self, tmp_path: Path) -> None:
        path = tmp_path / "blocks.jsonl"
        engine = watched({"name": "block_map", "path": str(path)})
        engine.add(request("A", range(6), max_tokens=4))
        engine.step()
        engine.abort("A")
        engine.step()
        engine.close()
        assert {span.end for span in BlockHistory(path).blocks("A")} == {1}

    def test_entries_that_are_not_neighbours(self, tmp_path: Path) -> None:
        path = tmp_path / "blocks.jsonl"
        engine = watched({"name": "block_map", "path": str(path)})
        group = engine.add(request("A", range(6), max_tokens=1))
        for index in (5, 7):
            event = BlockEvent(
                step=0, sequence=group.live[0].id, index=index, block=BlockId(9 * index)
            )
            engine.observers[0].on_block(event)
        finish(engine)
        engine.close()
        spans = {span.index: span.block for span in BlockHistory(path).blocks("A")}
        assert (sorted(spans), spans[5], spans[7]) == ([0, 1, 5, 7], 45, 63)

    def test_evictions(self, tmp_path: Path) -> None:
        path = tmp_path / "blocks.jsonl"
        engine = watched({"name": "block_map", "path": str(path)}, num_blocks=4)
        for name in "AB":
            engine.add(request(name, [ord(name)] * 12, max_tokens=1))
            finish(engine)
        engine.close()
        history = BlockHistory(path)
        assert len(history.evictions) == engine.metrics.num_evictions == 2
        assert all(history.owners(block, step) for step, block in history.evictions)

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            ([], "is empty"),
            (["{"], "line 1: it is not JSON"),
            (["{}"], "line 1: version"),
            ([{"version": 9, "num_blocks": 4, "block_size": 4}], "version 9, and 1 can be read"),
            ([{"version": 1, "num_blocks": 10**9, "block_size": 4}], "line 1: num_blocks"),
            (["head", {"step": -1, "time": 0}], "line 2: step"),
            (["head", {"step": 0, "time": 0, "held": [["A", 0, 0, [4]]]}], "line 2: block 4, and"),
            (["head", {"step": 0, "time": 0, "held": [["A", 0, 0]]}], "line 2: held.0"),
            (["head", {"step": 0, "time": 0, "more": 1}], "line 2: more"),
            (["head", {"step": 1, "time": 0}, {"step": 0, "time": 0}], "line 3: step 0 is not in"),
            ([b"\xff"], "line 1: it is not text"),
        ],
        ids=str,
    )
    def test_what_is_none(self, tmp_path: Path, lines: list[Any], message: str) -> None:
        head = {"version": 1, "num_blocks": 4, "block_size": 4}
        path = tmp_path / "b.jsonl"
        path.write_bytes(b"".join(_line(head if line == "head" else line) for line in lines))
        with pytest.raises(SettingsError, match=message) as caught:
            BlockHistory(path)
        assert str(path) in str(caught.value)
        with pytest.raises(SettingsError, match="nowhere: it cannot be read"):
            BlockHistory(tmp_path / "nowhere")


def _line(line: Any) -> bytes:
    if isinstance(line, bytes):
        return line
    return (line if isinstance(line, str) else json.dumps(line)).encode() + b"\n"


def seen_tables(
    engine: Engine, workload: Workload
) -> Iterator[tuple[int, Count[tuple[str, int, int]]]]:
    """Serve a workload; the entries of all block tables in each step that was submitted."""
    seen: dict[int, Count[tuple[str, int, int]]] = {}
    submit = engine.executor.submit

    def look(step: StepInput, /) -> Any:
        seen[step.number] = Count(
            (group.id, index, block)
            for group in engine.groups
            for sequence in group.live
            for index, block in enumerate(sequence.table.blocks)
        )
        return submit(step)

    engine.executor.submit = look  # type: ignore[method-assign]
    serve(engine, workload)
    return iter(seen.items())


def test_they_hear_of_a_run_with_planning_ahead(tmp_path: Path) -> None:
    observers: list[Any] = [
        {"name": "block_map", "path": str(tmp_path / "blocks.jsonl")},
        "metrics",
        {"name": "step_log", "path": str(tmp_path / "steps.jsonl")},
    ]
    engine = build_memory_engine(REGISTRY, observers=observers, num_blocks=8, async_scheduling=True)
    for name in "ABC":
        engine.add(request(name, [ord(name)] * 10, max_tokens=9, stop_token_ids=[1]))
    finish(engine)
    assert len(engine.observers) == 3
    engine.close()
    assert BlockHistory(tmp_path / "blocks.jsonl").requests == ["A", "B", "C"]
