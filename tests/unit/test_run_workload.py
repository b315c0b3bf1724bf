"""A run of a workload: who arrives when, and what the record says."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_core.engine.wiring import build_engine
from paged_core.errors import EngineError
from paged_core.interfaces.observer import Observer
from paged_core.interfaces.scheduler import Schedule
from paged_core.sequence import SequenceGroup
from paged_plugins.lab.runs.run_workload import RecordedLoop, RunCollector, memory_use
from paged_plugins.lab.runs.time_histogram import bucket
from paged_plugins.workloads.request import WorkloadRequest
from unit.lab_runs import REGISTRY, asks, run, simulated


def test_times_are_those_of_the_steps() -> None:
    record = run([asks("A", 8, 3, at=2.5), asks("B", 8, 1, at=10.0, deadline=4.0)])
    first, second = record.requests
    assert (first.arrival, first.admitted, first.first_token, first.finished) == (
        2.5,
        2.5,
        3.5,
        5.5,
    )
    assert (second.arrival, second.finished, second.deadline) == (10.0, 11.0, 14.0)
    totals = record.totals
    assert (totals.num_steps, totals.busy_seconds, totals.elapsed) == (4, 4.0, 8.5)
    assert record.token_gaps == {bucket(1.0): 2}


def test_a_follower_arrives_after_the_answer_and_finds_it_in_the_cache() -> None:
    follower = WorkloadRequest(id="B", at=0.5, prompt=(range(7, 10),), output=2)
    record = run([asks("A", 8, 5, followers=(follower,))])
    first, second = record.requests
    assert second.arrival == first.finished + 0.5
    assert second.num_prompt == 8 + 5 + 3
    assert second.num_cached == 12, "whole blocks of what was computed: all but the last token"


def test_what_can_never_run_is_recorded_with_all_that_follows_it() -> None:
    last = asks("C", 3, 1)
    follower = asks("B", 3, 1, followers=(last,))
    too_long = asks("A", 8 * 64, 1, followers=(follower,), deadline=9.0)
    record = run([too_long, asks("D", 8, 1)])
    reasons = {each.id: each.finish_reason for each in record.requests}
    assert reasons == dict.fromkeys("ABC", "ignored") | {"D": "length"}
    assert record.failure is not None
    assert "'A' has a prompt of 512 tokens" in record.failure
    assert record.requests[0].deadline == 9.0, "it is missed, as that of a request that waited"


def test_a_run_that_serves_nothing_takes_no_time() -> None:
    assert run([asks("A", 8 * 64, 1, at=3.0)]).totals.elapsed == 0
    assert run([]).totals.elapsed == 0


def test_tokens_that_a_preemption_takes_are_counted_when_they_are_computed_again() -> None:
    requests = [asks(name, 12, 16) for name in "ABC"]
    roomy = run(requests).totals
    assert (roomy.num_preemptions, roomy.recomputed_tokens, roomy.num_evictions) == (0, 0, 0)
    assert roomy.scheduled_tokens == 3 * (12 + 15)
    tight = run(requests, num_blocks=14, block_allocator="uncached").totals
    assert tight.num_preemptions > 0
    assert tight.recomputed_tokens == tight.scheduled_tokens - roomy.scheduled_tokens > 0


def test_evictions_and_swaps_are_counted() -> None:
    waves = [asks(name, 12, 16, at=100.0 * i) for i, name in enumerate("ABCDEF")]
    assert run(waves, num_blocks=14).totals.num_evictions > 5
    swapping = [asks(name, 12, 16) for name in "ABC"]
    assert run(swapping, num_blocks=14, preemption="swap").totals.swapped_blocks > 0


def test_samples_are_thinned_out_evenly() -> None:
    requests = [asks(name, 4, 40, at=41.0 * i) for i, name in enumerate("ABCDEFGH")]
    collector = RunCollector(16)
    engine = build_engine(simulated(), REGISTRY, observers=[collector])
    record = RecordedLoop(engine, collector, iter(requests)).record()
    engine.close()
    times = [sample.time for sample in record.steps]
    assert 8 <= len(times) < 16
    assert len({round(b - a) for a, b in itertools.pairwise(times)}) <= 2
    assert record.totals.num_steps == 320


def test_shares_add_up_to_the_cache_where_runs_are_reserved() -> None:
    """As in figure 2 of the PagedAttention paper: every slot is one of four, or free."""
    requests = [asks(name, 5, 6) for name in "ABCDEFGH"]
    totals = run(
        requests,
        num_blocks=16,
        max_model_len=32,
        block_allocator={"name": "contiguous", "reserve": "max"},
        preemption="never",
    ).totals
    assert totals.held_share > 0
    assert totals.internal_share > totals.reserved_share > 0
    parts = totals.held_share + totals.reserved_share + totals.internal_share
    assert parts + totals.external_share <= 1 + 1e-9


def test_an_observer_that_was_dropped_makes_no_record() -> None:
    class Failing(RunCollector):
        def on_request(self, group: SequenceGroup, event: str, /) -> None:
            raise RuntimeError

    collector = Failing(16)
    engine = build_engine(simulated(), REGISTRY, observers=[collector])
    with pytest.raises(Exception, match="record of the run is incomplete"):
        RecordedLoop(engine, collector, iter([asks("A", 4, 2)])).record()


# ---------------------------------------------------------------------- against plain counting


class Plain(Observer):
    """Counts in the plainest way what the collector counts in clever ones."""

    def __init__(self) -> None:
        self.gaps: Counter[int] = Counter()
        self._last: dict[Any, float] = {}

    def advanced(self, sequences: Sequence[Any], now: float) -> None:
        for sequence in sequences:
            if sequence in self._last:
                self.gaps[bucket(now - self._last[sequence])] += 1
            self._last[sequence] = now


def slots(engine: Any) -> tuple[int, int, int]:
    """Slots held, reserved and lost, one by one."""
    size, use = engine.kv_cache.block_size, {}
    for group in engine.groups:
        for sequence in group.live:
            for index, block in enumerate(sequence.table.blocks):
                for place in range(size):
                    token = index * size + place
                    kind = 0 if token < sequence.num_computed else 1
                    kind = kind if kind == 0 or token < group.max_length - 1 else 2
                    use[block, place] = min(kind, use.get((block, place), 2))
    counts = Counter(use.values())
    return counts[0], counts[1], counts[2]


@st.composite
def workloads(draw: st.DrawFn) -> list[WorkloadRequest]:
    random = Random(draw(st.integers(0, 10**6)))
    return [
        WorkloadRequest(
            id=f"r{number}",
            at=random.uniform(0, 20),
            prompt=(range(8), range(100 * number, 100 * number + random.randint(1, 20))),
            output=random.randint(1, 20),
            n=random.choice([1, 1, 3]),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


@settings(max_examples=25, deadline=None)
@given(workloads(), st.sampled_from(["prefill_or_decode", "token_budget"]), st.integers(24, 60))
def test_gaps_and_slots_are_as_plain_counting_says(
    requests: list[WorkloadRequest], scheduler: str, num_blocks: int
) -> None:
    plain = Plain()

    class Checked(RunCollector):
        def step(self, engine: Any, outcome: Any, work: Any, began: float, ended: float) -> None:
            super().step(engine, outcome, work, began, ended)
            plain.advanced(outcome.advanced, ended)
            running = [group for group in engine.groups if group in self._active]
            use = memory_use(engine.kv_cache, running, None)
            assert (use.held, use.reserved, use.internal) == slots(engine)
            kv = engine.kv_cache
            held = {
                block for group in engine.groups for s in group.live for block in s.table.blocks
            }
            assert kv.num_blocks - kv.num_free == len(held)
            assert 0 <= use.idle <= kv.num_free * kv.block_size

    collector = Checked(10**6)
    values = simulated(num_blocks=num_blocks, scheduler=scheduler)
    engine = build_engine(values, REGISTRY, observers=[collector])
    ordered = iter(sorted(requests, key=lambda request: request.at))
    record = RecordedLoop(engine, collector, ordered).record()
    engine.close()
    assert record.token_gaps == plain.gaps
    assert len(record.requests) == len(requests)


# ---------------------------------------------------------------------- the future


def flood(count: int) -> list[WorkloadRequest]:
    """Requests that reuse one of several prefixes in turn, and never follow another."""
    prefixes = [range(10**6 * (1 + i), 10**6 * (1 + i) + 16) for i in range(6)]
    return [
        WorkloadRequest(
            id=f"r{i}",
            at=50.0 * i,
            prompt=(prefixes[i % 6], range(100 * i, 100 * i + 4)),
            output=2,
        )
        for i in range(count)
    ]


def hits(evictor: str) -> int:
    return sum(each.num_cached for each in run(flood(60), evictor=evictor, num_blocks=20).requests)


def test_belady_knows_the_future_from_a_rehearsal() -> None:
    assert hits("lru") == 0, "each prefix is evicted just before it is asked for again"
    assert hits("belady") > hits("mru") * 0.99 > 0


def test_the_rehearsal_is_made_only_if_an_evictor_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    plain = RecordedLoop.record

    def counted(self: RecordedLoop, *args: Any) -> Any:
        made.append(1)
        return plain(self, *args)

    monkeypatch.setattr(RecordedLoop, "record", counted)
    hits("lru")
    assert len(made) == 1
    hits("belady")
    assert len(made) == 3


def test_a_scheduler_that_never_plans_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build_engine(simulated(), REGISTRY, observers=[collector := RunCollector(16)])
    monkeypatch.setattr(engine.scheduler, "schedule", lambda now: Schedule())
    with pytest.raises(EngineError, match="planned nothing for 1 s although 1 requests wait"):
        RecordedLoop(engine, collector, iter([asks("A", 4, 2)])).record()
    assert 1 < engine.clock() < 2
