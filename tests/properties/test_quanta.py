"""Quanta change when requests run, and never their output; and every request finishes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.sequence import SequenceGroup
from paged_policies.orders.mlfq import MlfqSettings
from paged_policies.schedulers.iteration_level import IterationLevelSettings
from paged_policies.schedulers.prefill_or_decode import PrefillOrDecodeSettings
from paged_policies.schedulers.token_budget import TokenBudgetSettings
from paged_testing.doubles import ALWAYS_OVER, AlwaysOverSettings, FailingExecutor, WatchedScheduler
from paged_testing.engines import build_memory_engine, engine_settings, serve
from paged_testing.served import check_nothing_leaked, check_said, check_served
from paged_testing.workloads import Workload, workloads
from properties.mixed_workloads import mixed_workload
from properties.profile import profile

REGISTRY = Registry.discover().extended(ALWAYS_OVER)
SCHEDULERS: tuple[ComponentSettings, ...] = (
    TokenBudgetSettings(),
    PrefillOrDecodeSettings(),
    IterationLevelSettings(),
)
ORDERS: tuple[ComponentSettings, ...] = (
    MlfqSettings(first_quantum=1),
    MlfqSettings(first_quantum=3),
    AlwaysOverSettings(waiting_first=True),
)
MAX_STEPS = 5000
"""Enough even if a prompt is recomputed for every token, in chunks of a few tokens."""


@st.composite
def quanta(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of small engines with quanta."""
    fixed = {
        "queue_order": draw(st.sampled_from(ORDERS)),
        "scheduler": draw(st.sampled_from(SCHEDULERS)),
    }
    values: dict[str, Any] = draw(engine_settings(REGISTRY, fixed))
    return values


def check(values: dict[str, Any], workload: Workload) -> dict[str, SequenceGroup]:
    engine = build_memory_engine(REGISTRY, **values)
    groups = serve(engine, workload, max_steps=MAX_STEPS)
    check_served(engine, workload, groups)
    return groups


@given(quanta(), workloads(max_aborts=3))
@profile(100)
def test_text_does_not_depend_on_quanta(values: dict[str, Any], workload: Workload) -> None:
    check(values, workload)


@pytest.mark.slow
@given(quanta(), workloads(max_requests=10, max_aborts=3))
@profile(5000)
def test_text_does_not_depend_on_quanta_for_long(
    values: dict[str, Any], workload: Workload
) -> None:
    check(values, workload)


@given(
    quanta(),
    workloads(),
    st.sets(st.integers(0, 20), max_size=3),
    st.sets(st.integers(0, 20), max_size=3),
)
@profile(50)
def test_steps_that_fail_end_only_their_own_requests(
    values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
) -> None:
    engine = build_memory_engine(REGISTRY, **values)
    FailingExecutor.install(engine, before=before, after=after)
    for group in serve(engine, workload, max_steps=MAX_STEPS).values():
        check_said(engine, group)
    check_nothing_leaked(engine)


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
        check_served(engine, workload, serve(engine, workload, max_steps=MAX_STEPS))
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
