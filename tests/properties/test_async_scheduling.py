"""Planning a step while the one before it runs changes no text and loses no block."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.engine.engine import Engine
from paged_core.plugins.registry import Registry
from paged_testing.doubles import BackgroundExecutor, FailingExecutor
from paged_testing.engines import build_memory_engine, engine_settings, serve
from paged_testing.served import check_nothing_leaked, check_said, check_served
from paged_testing.workloads import Workload, workloads
from properties.profile import profile

REGISTRY = Registry.discover()
FAILURES = st.sets(st.integers(0, 20), max_size=4)


def async_engine(values: dict[str, Any], **failures: set[int]) -> Engine:
    engine = build_memory_engine(REGISTRY, **values, async_scheduling=True)
    if failures:
        FailingExecutor.install(engine, **failures)
    BackgroundExecutor.install(engine)
    return engine


def check(values: dict[str, Any], workload: Workload) -> None:
    engine = async_engine(values)
    check_served(engine, workload, serve(engine, workload))


def check_with_failures(
    values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
) -> None:
    engine = async_engine(values, before=before, after=after)
    for group in serve(engine, workload).values():
        check_said(engine, group)
    check_nothing_leaked(engine)


@given(engine_settings(REGISTRY), workloads(max_aborts=3))
@profile(200)
def test_text_does_not_depend_on_the_schedule(values: dict[str, Any], workload: Workload) -> None:
    check(values, workload)


@pytest.mark.slow
@given(engine_settings(REGISTRY), workloads(max_requests=12, max_aborts=3))
@profile(10_000)
def test_text_does_not_depend_on_the_schedule_for_long(
    values: dict[str, Any], workload: Workload
) -> None:
    check(values, workload)


@given(engine_settings(REGISTRY), workloads(max_aborts=3), FAILURES, FAILURES)
@profile(150)
def test_requests_that_a_failed_step_does_not_concern_go_on(
    values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
) -> None:
    check_with_failures(values, workload, before, after)


@given(engine_settings(REGISTRY), workloads(max_aborts=2), FAILURES, FAILURES)
@profile(40)
def test_nor_does_it_without_the_kv_cache(
    values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
) -> None:
    check_with_failures({**values, "kv_cache": False}, workload, before, after)


@pytest.mark.slow
@given(engine_settings(REGISTRY), workloads(max_requests=10, max_aborts=4), FAILURES, FAILURES)
@profile(5000)
def test_requests_that_a_failed_step_does_not_concern_go_on_for_long(
    values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
) -> None:
    check_with_failures(values, workload, before, after)
