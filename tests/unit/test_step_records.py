"""Reports of evictions, cached blocks, copies and swaps to observers, and counts of engines."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.engine.clock import VirtualClock
from paged_core.engine.engine import Engine
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.sequence import SequenceGroup
from paged_testing import Workload, build_memory_engine, serve, simple_request
from paged_testing.doubles import FailingExecutor
from unit.engines import Recorder, engine_with, finish, request


def watched(**settings: Any) -> tuple[Engine, Recorder]:
    records = Recorder()
    return engine_with(observers=[records], **settings), records


def serve_one(engine: Engine, name: str, start: int, num_tokens: int, max_tokens: int = 1) -> None:
    engine.add(request(name, range(start, start + num_tokens), max_tokens=max_tokens))
    finish(engine)


class TestEvictions:
    def test_are_the_cached_blocks_that_get_other_content(self) -> None:
        engine, records = watched(num_blocks=4)
        serve_one(engine, "A", 100, 12)  # fills and caches three of the four blocks
        serve_one(engine, "B", 200, 8)  # takes the empty one, and one of A's
        evicted = [list(step.evicted) for step in records.steps]
        held = {event.block for event in records.blocks if event.block is not None}
        assert [len(blocks) for blocks in evicted] == [0, 1]
        assert set(evicted[1]) <= held
        assert engine.metrics.num_evictions == 1

    def test_are_not_blocks_whose_content_was_uncached(self) -> None:
        engine, _ = watched(num_blocks=4)
        serve_one(engine, "A", 100, 12)
        assert engine.reset_prefix_cache()
        serve_one(engine, "B", 200, 12)
        assert engine.metrics.num_evictions == 0

    def test_are_counted_in_a_step_that_fails(self) -> None:
        engine, records = watched(num_blocks=4)
        serve_one(engine, "A", 100, 12)
        FailingExecutor.install(engine, before={1})
        serve_one(engine, "B", 200, 8)
        assert engine.metrics.num_evictions == 1
        assert len(records.steps[-1].evicted) == 1


class TestHits:
    def test_are_the_blocks_that_a_request_shares(self) -> None:
        engine, records = watched()
        serve_one(engine, "A", 100, 12)
        serve_one(engine, "B", 100, 12)
        first, second = records.steps
        blocks = [event.block for event in records.blocks if event.step == first.number]
        assert not first.hits
        assert second.hits == {"B": blocks[:2]}
        assert second.cached == {"B": 8}


@pytest.mark.parametrize("allocator", ["hash_cached", "uncached"])
def test_recomputed_tokens_are_those_computed_twice(allocator: str) -> None:
    engine, records = watched(num_blocks=8, block_allocator=allocator)
    groups = [
        engine.add(request(name, [ord(name)] * 10, max_tokens=max_tokens))
        for name, max_tokens in (("A", 8), ("B", 14))
    ]
    finish(engine)
    assert sum(group.num_preemptions for group in groups) == 1
    scheduled = sum(sum(step.scheduled.values()) for step in records.steps)
    needed = (10 + 8 - 1) + (10 + 14 - 1)  # the last token of a sequence is never computed
    assert engine.metrics.num_recomputed_tokens == scheduled - needed > 0
    given_back = sum(sum(step.cached.values()) for step in records.steps)
    assert (given_back > 0) is (allocator == "hash_cached")


def test_copies_and_swaps_are_counted() -> None:
    engine, records = watched(num_blocks=64)
    engine.add(request("A", [1] * 6, n=3, max_tokens=3))
    finish(engine)
    assert sum(step.copied_blocks for step in records.steps) == 2
    swaps = {"num_host_blocks": 16, "preemption": "swap", "block_allocator": "uncached"}
    engine, records = watched(num_blocks=6, **swaps)
    for name in "AB":
        engine.add(request(name, [ord(name)] * 10, max_tokens=10))
    finish(engine)
    moved = [step.swapped_blocks for step in records.steps if step.swapped_blocks]
    out, back = moved
    assert out == back > 0
    assert engine.metrics.num_recomputed_tokens == 0


def test_a_step_ends_when_its_tokens_are_applied() -> None:
    engine, records = watched()
    clock = engine.clock = VirtualClock()
    collect = engine.executor.collect

    def slowly(handle: Any, /) -> Any:
        clock.sleep(0.25)
        return collect(handle)

    engine.executor.collect = slowly  # type: ignore[method-assign]
    serve_one(engine, "A", 0, 5, max_tokens=2)
    assert [(step.now, step.ended) for step in records.steps] == [(0.0, 0.25), (0.25, 0.5)]


@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
def test_a_step_is_told_before_the_requests_that_finish_in_it(ahead: bool) -> None:
    """So who counts steps or tokens of a request until it ends misses none."""
    heard: list[object] = []

    class Listener(Observer):
        def on_step(self, step: StepRecord, /) -> None:
            heard.append(dict(step.scheduled))
            heard.extend(("in", name) for name in step.finished)

        def on_request(self, group: SequenceGroup, event: str, /) -> None:
            if event == "finished":
                heard.append((group.id, event))

    engine = build_memory_engine(observers=[Listener()], async_scheduling=ahead)
    serve(engine, Workload(((0, simple_request("A", 3, 2)), (0, simple_request("B", 3, 3)))))
    told = [each for each in heard if each]
    assert told[1:] == [
        {"A": 1, "B": 1},
        ("in", "A"),
        ("A", "finished"),
        {"B": 1},
        ("in", "B"),
        ("B", "finished"),
    ]
    del heard[:]
    engine.add(simple_request("C", 3, 3))
    engine.abort("C")
    assert heard == [("C", "finished")], "a request that is aborted has no step to wait for"
