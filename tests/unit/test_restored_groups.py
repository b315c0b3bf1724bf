"""Groups of several sequences that are computed again after a preemption."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.engine.engine import Engine
from paged_core.request import FinishReason
from paged_testing.engines import build_memory_engine
from paged_testing.served import check_nothing_leaked, check_said
from paged_testing.workloads import simple_request
from unit.engines import finish

SCHEDULERS = ["token_budget", "prefill_or_decode"]
SMALL_CHUNKS = {"name": "token_budget", "max_num_batched_tokens": 5}


def preempted_group(**settings: Any) -> tuple[Engine, Any]:
    """Three sequences on a prompt of 8 blocks, pushed out by an older request that grows.

    Together they take 8 + 3 * 2 blocks; each for itself they would take 3 * 10.
    """
    engine = build_memory_engine(num_blocks=20, block_size=4, **settings)
    older = engine.add(simple_request("older", 22, 30))
    group = engine.add(simple_request("group", 32, 8, n=3))
    finish(engine)
    assert group.num_preemptions, "the pool was meant to be too small for both"
    check_said(engine, older)
    check_said(engine, group)
    check_nothing_leaked(engine)
    return engine, group


@pytest.mark.parametrize("scheduler", [*SCHEDULERS, SMALL_CHUNKS], ids=str)
@pytest.mark.parametrize("evictor", ["lru", "fifo", "mru", "random"])
def test_share_again_what_they_have_in_common(scheduler: Any, evictor: str) -> None:
    _, group = preempted_group(scheduler=scheduler, evictor=evictor)
    for sequence in group.sequences:
        assert (sequence.finish_reason, sequence.error) == (FinishReason.LENGTH, None)
        assert len(sequence.output) == 8


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_without_a_prefix_cache_they_may_end_early_and_say_why(scheduler: str) -> None:
    """Each sequence is a prompt of its own then: what all of them take is more than there is."""
    _, group = preempted_group(scheduler=scheduler, block_allocator="uncached")
    for sequence in group.sequences:
        assert sequence.finish_reason is FinishReason.LENGTH
        assert sequence.error
        assert len(sequence.output) < 8


@pytest.mark.parametrize("num_host_blocks", [0, 30])
def test_the_last_of_them_may_be_started_again_when_the_others_have_ended(
    num_host_blocks: int,
) -> None:
    """Steps are so small that two have ended before the third is begun."""
    engine = build_memory_engine(
        num_blocks=19,
        block_size=1,
        num_host_blocks=num_host_blocks,
        evictor="fifo",
        preemption="auto",
        scheduler={
            "name": "token_budget",
            "max_num_batched_tokens": 4,
            "reserve_full_sequence": False,
        },
    )
    older = engine.add(simple_request("older", (0,), 7))
    group = engine.add(simple_request("group", (0,) * 6, 5, n=3))
    finish(engine)
    check_said(engine, older)
    check_said(engine, group)
    assert {sequence.error for sequence in group.sequences} == {None}
    check_nothing_leaked(engine)
