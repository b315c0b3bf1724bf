"""What a request says does not depend on how it was scheduled, and nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from paged_core.engine import Engine
from paged_core.errors import RequestError
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceGroup
from paged_core.settings import settings_class
from paged_core.step import NewSequence
from paged_core.wiring import build_engine

from properties.strategies import REGISTRY, Workload, settings, workloads

SETTINGS = settings_class(REGISTRY)


def run(values: dict[str, Any], workload: Workload) -> tuple[Engine, dict[str, SequenceGroup]]:
    """Serve a workload to its end; no step may be planned in vain for long."""
    steps = [0]
    engine = build_engine(SETTINGS(**values), REGISTRY, clock=lambda: float(steps[0]))
    groups: dict[str, SequenceGroup] = {}
    to_come = list(workload.requests)
    while to_come or engine.has_unfinished:
        for step, request in to_come:
            if step == steps[0]:
                try:
                    groups[request.id] = engine.add(request)
                except RequestError:
                    continue
        to_come = [item for item in to_come if item[0] > steps[0]]
        for step, request_id in workload.aborts:
            if step == steps[0]:
                engine.abort(request_id)
        engine.step()
        steps[0] += 1
        assert steps[0] < 3000, f"no end in sight: {list(engine.groups)}"
    return engine, groups


def expected(engine: Engine, request: Request, index: int) -> list[int]:
    """What the request says if it is alone with all the room in the world."""
    new = NewSequence(
        id=0,  # type: ignore[arg-type]
        request_id=request.id,
        tokens=list(request.prompt),
        num_prompt_tokens=len(request.prompt),
        num_computed=0,
        blocks=[],
        sampling=request.sampling,
    )
    tokens = list(request.prompt)
    for _ in range(request.sampling.max_tokens or 0):
        tokens.append(engine.executor.draw(new, tokens, index))  # type: ignore[attr-defined]
    return tokens[len(request.prompt) :]


def check(values: dict[str, Any], workload: Workload) -> None:
    engine, groups = run(values, workload)
    aborted = {request_id for _, request_id in workload.aborts}
    for group in groups.values():
        for sequence in group.sequences:
            whole = expected(engine, group.request, sequence.index)
            assert sequence.output == whole[: len(sequence.output)]
            assert sequence.finish_reason is not FinishReason.ERROR, sequence.error
            if group.id not in aborted and sequence.finish_reason is not FinishReason.IGNORED:
                assert sequence.finish_reason is FinishReason.LENGTH
                assert sequence.output == whole or sequence.error, "it ended early, without a reason"
    kv_cache = engine.kv_cache
    assert kv_cache.num_free == kv_cache.num_blocks, "device blocks leaked"
    assert kv_cache.num_free_host == kv_cache.num_host_blocks, "host blocks leaked"
    assert len(engine.scheduler) == 0


@given(settings(), workloads())
@hypothesis_settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_text_does_not_depend_on_the_schedule(values: dict[str, Any], workload: Workload) -> None:
    check(values, workload)


@pytest.mark.slow
@given(settings(), workloads(max_requests=12))
@hypothesis_settings(
    max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_text_does_not_depend_on_the_schedule_for_long(
    values: dict[str, Any], workload: Workload
) -> None:
    check(values, workload)
