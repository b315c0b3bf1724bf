"""Schedulers leave out what waits for a step in flight: running sequences with nothing pending."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.engine.engine import Engine
from paged_core.interfaces.scheduler import Schedule
from paged_core.sequence import SequenceGroup
from paged_testing.engines import build_memory_engine
from paged_testing.served import check_nothing_leaked, check_said
from paged_testing.workloads import simple_request
from unit.engines import finish

pytestmark = pytest.mark.parametrize(
    "scheduler", ["token_budget", "prefill_or_decode", "static_batch", "iteration_level"]
)


def decoding(scheduler: str, *groups: tuple[str, int, int], **settings: Any) -> Engine:
    """An engine whose requests, each a name, a prompt's length and ``n``, all decode."""
    engine = build_memory_engine(scheduler=scheduler, **settings)
    for name, length, n in groups:
        engine.add(simple_request(name, length, 8, n=n))
    engine.step()
    assert len(engine.scheduler.queues().running) == len(groups)
    return engine


def in_flight(group: SequenceGroup, *indices: int) -> None:
    """Count the last tokens of these sequences of a group as scheduled."""
    for index in indices:
        group.live[index].num_scheduled = group.live[index].num_tokens


def settle(engine: Engine) -> None:
    """Count as scheduled what is computed, and serve all requests to their ends."""
    groups = list(engine.groups)
    for group in groups:
        for sequence in group.live:
            sequence.num_scheduled = sequence.num_computed
    finish(engine)
    for group in groups:
        check_said(engine, group)
    check_nothing_leaked(engine)


def scheduled(plan: Schedule) -> dict[str, list[int]]:
    """Tokens per sequence, by request; all else in the plan is empty."""
    assert not (plan.preempted or plan.swapped_out or plan.swapped_in or plan.ignored)
    found: dict[str, list[int]] = {}
    for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
        found.setdefault(sequence.group.id, []).append(num_tokens)
    return found


def test_a_group_is_left_out_as_a_whole(scheduler: str) -> None:
    engine = decoding(scheduler, ("A", 5, 3), ("B", 6, 1))
    group, _ = engine.groups
    in_flight(group, 1)
    assert scheduled(engine.scheduler.schedule(1.0)) == {"B": [1]}
    settle(engine)


def test_it_takes_no_block_and_preempts_none(scheduler: str) -> None:
    """All blocks are held, and each needs another one for its next token."""
    engine = decoding(scheduler, ("A", 8, 1), ("B", 8, 2), num_blocks=4)
    first, second = engine.groups
    assert engine.kv_cache.num_free == 0
    in_flight(first, 0)
    in_flight(second, 0, 1)
    assert scheduled(engine.scheduler.schedule(1.0)) == {}
    assert engine.kv_cache.num_free == 0
    settle(engine)
