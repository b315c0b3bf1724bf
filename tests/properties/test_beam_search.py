"""What a search finds does not depend on how its beams were scheduled, and no block is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_testing.doubles import FailingExecutor
from paged_testing.engines import build_memory_engine, engine_settings, serve
from paged_testing.served import check_nothing_leaked, check_said, check_served
from paged_testing.workloads import Workload, requests
from properties.profile import profile

REGISTRY = Registry.discover()
VOCAB_SIZE = 12


@st.composite
def searches(draw: st.DrawFn, number: int) -> Request:
    width = draw(st.integers(1, 4))
    sampling = SamplingParams(
        n=draw(st.integers(1, width)),
        beam_width=width,
        length_penalty=draw(st.sampled_from([1.0, 0.0, -1.0, 2.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
        stop_token_ids=draw(st.sampled_from([(), (3,), (1, 5)])),
        max_tokens=draw(st.integers(1, 10)),
        logprobs=draw(st.sampled_from([None, 0, 2])),
    )
    prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=12))
    return Request(id=f"r{number}", prompt=tuple(prompt), sampling=sampling, arrival=float(number))


@st.composite
def workloads(draw: st.DrawFn, max_requests: int = 4) -> Workload:
    coming = []
    for number in range(draw(st.integers(1, max_requests))):
        kind = draw(st.sampled_from([searches(number), searches(number), requests("r", number)]))
        coming.append((draw(st.integers(0, 6)), draw(kind)))
    ids = st.sampled_from([request.id for _, request in coming])
    aborts = draw(st.lists(st.tuples(st.integers(0, 12), ids), max_size=2))
    return Workload(tuple(coming), tuple(aborts))


def build(values: dict[str, Any]) -> Any:
    executor = {"name": "memory", "vocab_size": VOCAB_SIZE}
    return build_memory_engine(REGISTRY, **(values | {"executor": executor}))


def check(values: dict[str, Any], workload: Workload) -> None:
    engine = build(values)
    groups = serve(engine, workload)
    check_served(engine, workload, groups)
    for group in groups.values():
        for sequence in group.sequences:
            if group.request.sampling.logprobs is not None and sequence.logprobs:
                chosen = [next(iter(entry.items())) for entry in sequence.logprobs]
                assert [token for token, _ in chosen] == sequence.output
                total = sum(logprob for _, logprob in chosen)
                assert total == pytest.approx(sequence.cumulative_logprob)


@given(engine_settings(REGISTRY), workloads())
@profile(150)
def test_a_search_does_not_depend_on_the_schedule(
    values: dict[str, Any], workload: Workload
) -> None:
    check(values, workload)


@pytest.mark.slow
@given(engine_settings(REGISTRY), workloads(max_requests=8))
@profile(5000)
def test_a_search_does_not_depend_on_the_schedule_for_long(
    values: dict[str, Any], workload: Workload
) -> None:
    check(values, workload)


@given(
    engine_settings(REGISTRY),
    workloads(),
    st.sets(st.integers(0, 20), max_size=4),
    st.sets(st.integers(0, 20), max_size=4),
)
@profile(60)
def test_failing_steps_lose_no_block_of_a_search(
    values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
) -> None:
    engine = build(values)
    FailingExecutor.install(engine, before=before, after=after)
    for group in serve(engine, workload).values():
        check_said(engine, group)
    check_nothing_leaked(engine)
