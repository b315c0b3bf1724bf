"""Quanta preempt what they may preempt, and nothing else.

That they never change an output is part of ``test_schedule_independence.py``.
"""

from __future__ import annotations

import pytest

from paged_testing.doubles import WatchedScheduler
from paged_testing.engines import build_memory_engine, serve
from paged_testing.served import check_served
from properties.mixed_workloads import mixed_workload
from unit.engines import REGISTRY


def num_preempted(scheduler: str, preemption: str, first_quantum: int) -> int:
    """How many of some crowds are preempted, where three sequences run and blocks suffice."""
    total = 0
    for number in range(6):
        engine = build_memory_engine(
            REGISTRY,
            queue_order={"name": "mlfq", "first_quantum": first_quantum, "promote_after": 9.0},
            scheduler={"name": scheduler, "max_num_seqs": 3},
            preemption=preemption,
            num_blocks=400,
            num_host_blocks=400,
        )
        watched = WatchedScheduler.install(engine, None, 3)
        workload = mixed_workload(number)
        check_served(engine, workload, serve(engine, workload, max_steps=5000))
        total += len(watched.preempted)
    return total


@pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode", "iteration_level"])
class TestPreemptions:
    @pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
    def test_single_sequences_forked_groups_and_beam_searches_are_preempted(
        self, scheduler: str, preemption: str
    ) -> None:
        assert num_preempted(scheduler, preemption, first_quantum=2) >= 6
        assert num_preempted(scheduler, preemption, first_quantum=1000) == 0

    def test_none_whose_blocks_are_reserved_to_its_end_is_preempted(self, scheduler: str) -> None:
        assert num_preempted(scheduler, "never", first_quantum=2) == 0
