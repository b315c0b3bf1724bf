"""Scheduler ``past_future``: what is admitted is expected to fit until it ends."""

from __future__ import annotations

from typing import Any

from paged_core.plugins.registry import Registry
from paged_testing.engines import build_memory_engine
from paged_testing.workloads import simple_request

REGISTRY = Registry.discover()


def served(scheduler: dict[str, Any], *, learns_from: int = 0) -> tuple[int, int]:
    """Serve eight requests that may get 64 tokens, and get 64, by 24 blocks of 4; return the
    preemptions, and the most that ran.

    Args:
        learns_from: answers of 8 tokens that ended before.
    """
    engine = build_memory_engine(
        REGISTRY,
        scheduler=scheduler,
        block_allocator="uncached",
        num_blocks=48,
        block_size=4,
    )
    for number in range(learns_from):
        engine.add(simple_request(f"short{number}", 4, 8))
    while engine.has_unfinished:
        engine.step()
    for number in range(8):
        engine.add(simple_request(f"r{number}", 4, 60))
    most = 0
    while engine.has_unfinished:
        engine.step()
        most = max(most, len(engine.scheduler.queues().running))
    return engine.metrics.num_preemptions, most


def test_nothing_is_preempted_where_lengths_are_foreseen() -> None:
    assert served({"name": "token_budget"})[0] > 0
    assert served({"name": "past_future"}) == (0, 3), "three times 64 tokens fill the cache"


def test_earlier_answers_are_expected_again() -> None:
    """Answers that were short let more in, of which too much was expected."""
    preemptions, most = served({"name": "past_future"}, learns_from=8)
    assert preemptions > 0
    assert most > 3


def test_the_expectation_grows_with_the_quantile() -> None:
    """One long answer among the earlier ones is expected only by a high quantile."""
    runs = []
    for quantile in (0.5, 1.0):
        engine = build_memory_engine(
            REGISTRY,
            scheduler={"name": "past_future", "quantile": quantile},
            block_allocator="uncached",
            num_blocks=48,
            block_size=4,
        )
        for number, length in enumerate((8, 8, 8, 60)):
            engine.add(simple_request(f"first{number}", 4, length))
        while engine.has_unfinished:
            engine.step()
        for number in range(8):
            engine.add(simple_request(f"r{number}", 4, 60))
        engine.step()
        runs.append(len(engine.scheduler.queues().running))
        engine.close()
    assert runs == [8, 3]


def test_one_is_admitted_when_nothing_runs_although_others_are_swapped_out() -> None:
    """A request that goes before swapped ones may not fit beside all of them, yet is the next."""
    engine = build_memory_engine(
        REGISTRY,
        scheduler={"name": "past_future"},
        queue_order={"name": "mlfq", "first_quantum": 4},
        preemption="swap",
        num_blocks=12,
        num_host_blocks=48,
        block_size=4,
    )
    for number in range(4):
        engine.add(simple_request(f"first{number}", 4, 8))
    while engine.has_unfinished:
        engine.step()
    for number in range(6):
        engine.add(simple_request(f"long{number}", 12, 30))
        for _ in range(5):
            engine.step()
    for _ in range(2000):
        if not engine.has_unfinished:
            break
        engine.step()
    assert not engine.has_unfinished
    engine.close()
