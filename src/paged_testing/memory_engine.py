"""An engine without a model: its cache holds token ids, its clock counts steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paged_core.engine import Engine
from paged_core.errors import RequestError
from paged_core.interfaces.future import Future
from paged_core.interfaces.observer import Observer
from paged_core.registry import Registry
from paged_core.sequence import SequenceGroup, Status
from paged_core.settings import settings_class
from paged_core.step_outcome import StepOutcome
from paged_core.wiring import build_engine
from paged_testing.call_watch import described_by
from paged_testing.workload import Workload

MAX_IDLE_STEPS = 200
"""Steps in a row that may plan nothing while requests wait and none is to come."""


def build_memory_engine(
    registry: Registry | None = None,
    *,
    observers: Sequence[Observer | str | Mapping[str, Any]] = (),
    clock: Callable[[], float] | None = None,
    future: Future | None = None,
    **settings: Any,
) -> Engine:
    """Build an engine on the ``memory`` executor, which reads every scheduled sequence back.

    Args:
        registry: the source of components; by default, all that are installed.
        observers: instances, and names or tables of others, as in settings.
        clock: seconds; by default, the number of the step.
        future: the look-ups that evictors for replays get; by default, none.
        settings: of the engine; by default 64 blocks of 4 tokens and ``max_model_len`` 64.
    """
    registry = registry or Registry.discover()
    ready = [observer for observer in observers if isinstance(observer, Observer)]
    values: dict[str, Any] = {
        "executor": "memory",
        "num_blocks": 64,
        "block_size": 4,
        "max_model_len": 64,
        "observers": [other for other in observers if not isinstance(other, Observer)],
        **settings,
    }
    engine = build_engine(
        settings_class(registry)(**values), registry, observers=ready, future=future or Future()
    )
    engine.clock = clock or (lambda: float(engine.num_steps))
    return engine


def serve(engine: Engine, workload: Workload, *, max_steps: int = 1000) -> dict[str, SequenceGroup]:
    """Serve a workload to its end; return its groups by request id, without refused requests.

    Raises:
        AssertionError: it has not ended after ``max_steps``, nothing is planned any more (the
            message says what waits for what), or a policy raised.
    """
    scheduler = engine.scheduler
    groups: dict[str, SequenceGroup] = {}
    to_come = list(workload.requests)
    step = num_idle = 0
    while to_come or engine.has_unfinished:
        for request in [request for due, request in to_come if due <= step]:
            try:
                groups[request.id] = engine.add(request)
            except RequestError:
                continue
        to_come = [item for item in to_come if item[0] > step]
        due_aborts = [request_id for due, request_id in workload.aborts if due == step]
        outcome = _step(engine, due_aborts, step)
        if engine.scheduler is not scheduler:  # the policies were made anew
            ended = outcome.finished
            reason = ended[-1].sequences[0].error if ended else "a policy raised"
            raise AssertionError(f"step {step}: {reason}")
        num_idle = 0 if outcome.progressed or to_come else num_idle + 1
        assert num_idle < MAX_IDLE_STEPS, (
            f"step {step}: unfinished after {num_idle} steps without any progress: "
            f"{what_waits(engine)}"
        )
        step += 1
        assert step < max_steps, f"unfinished after {step} steps: {what_waits(engine)}"
    return groups


def what_waits(engine: Engine) -> str:
    """Say in a line which requests run, and which wait for how many blocks."""
    kv_cache, described = engine.kv_cache, []
    for group in engine.groups:
        lengths = "+".join(str(sequence.num_tokens) for sequence in group.live)
        held = kv_cache.distinct_blocks(group)
        if group.status is Status.WAITING:
            state = f"waits for {kv_cache.blocks_to_restore(group)} blocks"
        elif group.status is Status.SWAPPED:
            needed = held + kv_cache.blocks_to_grow(group)
            state = f"is swapped out and waits for {needed} blocks"
        else:
            state = f"runs in {held} blocks, {kv_cache.blocks_to_grow(group)} more for its next"
        described.append(f"{group.id} ({lengths} tokens) {state}")
    free = f"{kv_cache.num_free} of {kv_cache.num_blocks} blocks are free"
    if kv_cache.num_host_blocks:
        free += f", {kv_cache.num_free_host} of {kv_cache.num_host_blocks} on the host"
    return "; ".join([*described, free])


def _step(engine: Engine, aborts: Sequence[str], number: int) -> StepOutcome:
    with described_by(lambda: f"in step {number}: {what_waits(engine)}"):
        for request_id in aborts:
            engine.abort(request_id)
        return engine.step()
