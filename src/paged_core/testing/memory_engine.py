"""An engine without a model: its cache holds token ids, its clock counts steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paged_core.engine import Engine
from paged_core.errors import RequestError
from paged_core.interfaces.future import Future
from paged_core.interfaces.observer import Observer
from paged_core.registry import Registry
from paged_core.sequence import SequenceGroup
from paged_core.settings import settings_class
from paged_core.testing.workload import Workload
from paged_core.wiring import build_engine


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
        AssertionError: it has not ended after ``max_steps``, or a policy raised.
    """
    scheduler = engine.scheduler
    groups: dict[str, SequenceGroup] = {}
    to_come = list(workload.requests)
    aborts = list(workload.aborts)
    step = 0
    while to_come or engine.has_unfinished:
        for request in [request for due, request in to_come if due <= step]:
            try:
                groups[request.id] = engine.add(request)
            except RequestError:
                continue
        to_come = [item for item in to_come if item[0] > step]
        for request_id in [request_id for due, request_id in aborts if due == step]:
            engine.abort(request_id)
        finished = engine.step().finished
        if engine.scheduler is not scheduler:  # the policies were made anew
            raise AssertionError(finished[-1].sequences[0].error if finished else "a policy raised")
        step += 1
        assert step < max_steps, f"unfinished after {step} steps: {list(engine.groups)}"
    return groups
