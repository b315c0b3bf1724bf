"""Under which policies a request can starve while others keep arriving, and the options against it.

That every request of a finite workload finishes is part of every property: see
``test_every_combination.py``. Here requests never stop arriving.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, product
from typing import Any

import pytest

from paged_core.engine.engine import Engine
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_testing.engines import build_memory_engine
from paged_testing.workloads import simple_request
from unit.engines import REGISTRY

STEPS = 400
STEM = (1, 2, 3, 4, 5, 6, 7, 8)
"""The common prefix of the favourites' prompts."""

ORDERS_THAT_STARVE: dict[str, dict[str, Any]] = {
    "priority": {"aging": 0.02},
    "sjf": {"aging": 0.2},
    "edf": {"default_slo": 60.0},
    "least_laxity": {"default_slo": 60.0},
    "qoe": {"aging": 0.01},
    "longest_prefix": {"aging": 0.2},
    "mlfq": {"promote_after": 60.0},
}
"""Queue orders under which a request can starve, and the options that prevent it."""

AT_ITS_WORST: dict[str, dict[str, Any]] = {
    "mlfq": {"first_quantum": 10, "promote_after": None},
}
"""Options under which a request starves that does not starve by default."""

ORDERS_THAT_DO_NOT = {"fcfs", "hrrn", "fair"}

VICTIMS_THAT_STARVE: dict[str, dict[str, Any]] = {
    "lowest_priority": {"max_preemptions": 3},
    "most_blocks": {"max_preemptions": 3},
}
VICTIMS_THAT_DO_NOT = {"newest", "fewest_computed", "recompute_cost", "most_remaining"}
"""Without a prefix cache, which would favour some requests."""

TURNS: dict[str, dict[str, Any]] = {
    "token_budget": {"max_num_seqs": 2, "max_num_batched_tokens": 24},
    "time_budget": {"max_num_seqs": 2, "max_num_batched_tokens": 24},
    "past_future": {"max_num_seqs": 2, "max_num_batched_tokens": 24},
    "prefill_or_decode": {"max_num_seqs": 2, "max_num_batched_tokens": 64},
    "iteration_level": {"max_num_seqs": 2},
    "static_batch": {"max_num_seqs": 2},
}
"""Schedulers that run two sequences."""


def each_pair(orders: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize with orders and schedulers: each in one pair, all other pairs in the long run."""
    names, turns = sorted(orders), list(TURNS)
    usual = [
        (names[at % len(names)], turns[at % len(turns)])
        for at in range(max(len(names), len(turns)))
    ]
    pairs = [
        pytest.param(*pair, marks=[] if pair in usual else pytest.mark.long)
        for pair in product(names, turns)
    ]
    return pytest.mark.parametrize(("order", "scheduler"), pairs)


def unlucky() -> Request:
    """A request that every order puts last: low priority, long, no deadline, no shared prefix."""
    return Request(
        id="unlucky",
        prompt=tuple(range(1000, 1020)),
        sampling=SamplingParams(max_tokens=4),
        priority=3,
        arrival=1.0,
        tenant="patient",
    )


def favourite(number: int, now: float) -> Request:
    """An urgent, short request with an early deadline and a shared prefix."""
    return Request(
        id=f"favourite{number}",
        prompt=(*STEM, number),
        sampling=SamplingParams(max_tokens=2),
        arrival=now,
        tenant=f"greedy{number % 2}",
        deadline=now + 5,
    )


def waits(engine: Engine, per_step: int = 1) -> SequenceGroup:
    """Serve one unlucky request among favourites: eight at first and ``per_step`` in each step.

    Each runs for two steps, and two run at once, so one per step keeps the engine busy for ever.
    """
    coming = count()
    for _ in range(8):
        engine.add(favourite(next(coming), 0.0))
    engine.step()
    group = engine.add(unlucky())
    for step in range(1, STEPS):
        for _ in range(per_step):
            engine.add(favourite(next(coming), float(step)))
        engine.step()
        if group.finished:
            break
    return group


def engine_of(order: dict[str, Any], scheduler: str) -> Engine:
    options = TURNS.get(scheduler, {})
    return build_memory_engine(
        REGISTRY, queue_order=order, scheduler={"name": scheduler, **options}, num_blocks=32
    )


def test_every_order_and_victim_is_covered() -> None:
    assert ORDERS_THAT_STARVE.keys() | ORDERS_THAT_DO_NOT == REGISTRY.of("queue_order").keys()
    assert VICTIMS_THAT_STARVE.keys() | VICTIMS_THAT_DO_NOT == REGISTRY.of("victim").keys()
    assert TURNS.keys() == REGISTRY.of("scheduler").keys()


@each_pair(ORDERS_THAT_STARVE)
def test_a_request_starves_without_the_option_against_it(order: str, scheduler: str) -> None:
    """While preferred ones keep arriving; with the option it is served."""
    options = {"name": order, **AT_ITS_WORST.get(order, {})}
    group = waits(engine_of(options, scheduler))
    assert not group.finished
    assert not group.sequences[0].output
    group = waits(engine_of({**options, **ORDERS_THAT_STARVE[order]}, scheduler))
    assert len(group.sequences[0].output) == 4


@each_pair(ORDERS_THAT_DO_NOT)
def test_no_request_starves_under_the_other_orders(order: str, scheduler: str) -> None:
    group = waits(engine_of({"name": order}, scheduler))
    assert len(group.sequences[0].output) == 4


def test_under_the_highest_response_ratio_a_request_starves_only_under_overload() -> None:
    """A request twice as large as the others is served unless the load is twice the capacity."""
    order = {"name": "hrrn"}
    assert not waits(engine_of(order, "token_budget"), per_step=2).finished
    assert waits(engine_of(order, "token_budget"), per_step=1).finished


def is_preempted(victim: dict[str, Any], threshold: int) -> SequenceGroup:
    """Serve a large request of low priority among small ones, with too few blocks for all."""
    engine = build_memory_engine(
        REGISTRY,
        block_allocator="uncached",
        victim=victim,
        scheduler={
            "name": "token_budget",
            "max_num_seqs": 8,
            "long_prefill_token_threshold": threshold,
        },
        num_blocks=14,
        block_size=2,
    )
    for number in range(3):
        engine.add(simple_request(f"first{number}", 2, 16))
    engine.step()
    group = engine.add(simple_request("large", 16, 8, priority=5))
    for number in range(STEPS):
        engine.add(simple_request(f"small{number}", 2, 16))
        engine.step()
        if group.finished:
            break
    return group


@pytest.mark.parametrize("victim", sorted(VICTIMS_THAT_STARVE))
def test_a_request_starves_if_it_is_preempted_before_its_prefill_ends(victim: str) -> None:
    """Unless its preemptions are limited."""
    group = is_preempted({"name": victim}, threshold=2)
    assert not group.finished
    assert group.num_preemptions > 10
    group = is_preempted({"name": victim, **VICTIMS_THAT_STARVE[victim]}, threshold=2)
    assert len(group.sequences[0].output) == 8


@pytest.mark.parametrize("victim", sorted(REGISTRY.of("victim")))
def test_no_request_starves_otherwise(victim: str) -> None:
    """Where a prompt is prefilled in one step, it advances each time."""
    for threshold in (0, 2) if victim in VICTIMS_THAT_DO_NOT else (0,):
        group = is_preempted({"name": victim}, threshold)
        assert len(group.sequences[0].output) == 8


@pytest.mark.parametrize("scheduler", sorted(TURNS))
def test_under_never_no_running_request_is_preempted(scheduler: str) -> None:
    """Not even for a waiting request of higher priority."""
    engine = build_memory_engine(
        REGISTRY,
        queue_order="priority",
        preemption="never",
        scheduler={"name": scheduler, **TURNS[scheduler]},
    )
    worse = engine.add(simple_request("worse", 5, 20, n=2, priority=5))
    engine.step()
    better = engine.add(simple_request("better", 5, 2))
    while not worse.finished:
        assert better.first_token_at is None
        engine.step()
    while not better.finished:
        engine.step()
    assert (worse.num_preemptions, better.num_preemptions) == (0, 0)
