"""Runs a scenario on an engine without a model and records its decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, cast

from paged_core.clock import Clock
from paged_core.interfaces.future import Future
from paged_core.interfaces.observer import Observer
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_core.step import NewSequence
from paged_core.wiring import build_engine
from paged_plugins.decisions.outcome import Outcome
from paged_plugins.decisions.replay_request import IDS_PER_REQUEST
from paged_plugins.decisions.replay_run import LastStep, ReplayRun
from paged_plugins.decisions.replay_settings import settings_of
from paged_plugins.decisions.scenario import Scenario
from paged_plugins.decisions.timeline import ClockTime, EqualSteps
from paged_plugins.workloads.rehearsal import Admissions, RehearsedFuture

_FIRST_GENERATED = 5 * 10**8
_IDS_PER_SEQUENCE = 10**6


def replay(
    scenario: Scenario,
    registry: Registry,
    outcome: Outcome | None = None,
    settings: EngineSettings | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the trace of a scenario, a line per step in which a request is unfinished.

    An evictor that asks for the future gets that of a rehearsal, see
    :class:`~paged_plugins.workloads.rehearsal.RehearsedFuture`.

    Args:
        outcome: is filled in with what the trace does not contain.
        settings: instead of the scenario's own; without them, neither the environment nor a
            settings file is read.

    Raises:
        SettingsError: the scenario's settings are invalid, or make the replay too long; what
            ``settings`` says is the caller's to check, by :func:`check_settings`.
    """
    settings = settings or settings_of(scenario, registry)

    def rehearse(settings: EngineSettings, watch: Observer) -> None:
        for _ in _run(scenario, registry, Outcome(), settings, watch):
            pass

    future = RehearsedFuture(settings, registry, rehearse)
    yield from _run(scenario, registry, outcome or Outcome(), settings, Admissions(future), future)


def _run(
    scenario: Scenario,
    registry: Registry,
    outcome: Outcome,
    settings: EngineSettings,
    watch: Observer,
    future: Future | None = None,
) -> Iterator[dict[str, Any]]:
    steps = EqualSteps(scenario.seconds_per_step, scenario.max_steps)
    is_stepped = settings.executor.name == "memory"
    record = LastStep()
    engine = build_engine(
        settings,
        registry,
        clock=steps.now if is_stepped else None,
        observers=[record, watch],
        future=future,
    )
    try:
        if is_stepped:
            numbers = {request.id: request.number for request in scenario.asked}
            cast("_Drawing", engine.executor).draw = partial(_draw, numbers)
        timeline = steps if is_stepped else ClockTime(cast("Clock", engine.clock))
        yield from ReplayRun(scenario, engine, timeline, record, outcome).lines()
    finally:
        engine.close()


class _Drawing(Protocol):
    """The attribute of the ``memory`` executor that a replay replaces."""

    draw: Callable[[NewSequence, Sequence[int], int], int]


def _draw(
    numbers: dict[str, int], sequence: NewSequence, tokens: Sequence[int], index: int, /
) -> int:
    """A token that no other sequence generates."""
    own = (numbers[sequence.request_id] + 1) * IDS_PER_REQUEST + _FIRST_GENERATED
    return own + index * _IDS_PER_SEQUENCE + len(tokens)
