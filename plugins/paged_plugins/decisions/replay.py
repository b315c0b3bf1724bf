"""Runs a scenario on an engine without a model and records its decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

from paged_core.engine.clock import Clock
from paged_core.engine.wiring import build_engine
from paged_core.errors import SettingsError
from paged_core.interfaces.observer import Observer
from paged_core.plugins.registry import Registry
from paged_core.requests.lookup_oracle import LookupOracle
from paged_core.settings.layers import Layer, Origin
from paged_core.settings.schema import EngineSettings, settings_class
from paged_core.settings.sources import entries
from paged_core.step import NewSequence
from paged_plugins.decisions.replay_run import ClockTime, EqualSteps, LastStep, Outcome, ReplayRun
from paged_plugins.decisions.scenario import IDS_PER_REQUEST, MAX_READS, Scenario
from paged_plugins.workloads.rehearsal import Admissions, RehearsedOracle

_EXECUTORS = ("memory", "simulated")
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
    :class:`~paged_plugins.workloads.rehearsal.RehearsedOracle`.

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

    future = RehearsedOracle(settings, registry, rehearse)
    yield from _run(scenario, registry, outcome or Outcome(), settings, Admissions(future), future)


def _run(
    scenario: Scenario,
    registry: Registry,
    outcome: Outcome,
    settings: EngineSettings,
    watch: Observer,
    future: LookupOracle | None = None,
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
            cast("_Sampling", engine.executor).sample = partial(_sample, scenario.numbers)
        timeline = steps if is_stepped else ClockTime(cast("Clock", engine.clock))
        yield from ReplayRun(scenario, engine, timeline, record, outcome).lines()
    finally:
        engine.close()


class _Sampling(Protocol):
    """The attribute of the ``memory`` executor that a replay replaces."""

    sample: Callable[[NewSequence, Sequence[int], int], int]


def _sample(
    numbers: dict[str, int], sequence: NewSequence, tokens: Sequence[int], index: int, /
) -> int:
    """A token that no other sequence generates."""
    own = (numbers[sequence.request_id] + 1) * IDS_PER_REQUEST + _FIRST_GENERATED
    return own + index * _IDS_PER_SEQUENCE + len(tokens)


def settings_of(scenario: Scenario, registry: Registry) -> EngineSettings:
    """Return the engine settings of a scenario.

    Raises:
        SettingsError: they are invalid; the message names the scenario.
    """
    try:
        settings, _ = settings_class(registry).from_layers([settings_layer(scenario)])
    except SettingsError as error:
        raise SettingsError(f"scenario {scenario.name!r}: {error}") from None
    check_settings(scenario, settings)
    return settings


def settings_layer(
    scenario: Scenario, where: str = "", lines: Mapping[tuple[str, ...], int | None] | None = None
) -> Layer:
    """Return what a scenario says about settings, to be laid under the other layers.

    Args:
        where: the file that it is written in.
        lines: of its settings and their options there.
    """
    values = {"executor": "memory", "max_model_len": 2048, **scenario.settings}
    return list(entries(values, Origin("yaml", where), (lines or {}).get))


def check_settings(scenario: Scenario, settings: EngineSettings) -> None:
    """Compare the settings for a replay with what a replay can do.

    Raises:
        SettingsError: it cannot; the message names the scenario.
    """
    problem = None
    if settings.async_scheduling is True:
        problem = "a replay decides after each result; leave `async_scheduling` out"
    elif settings.executor.name not in _EXECUTORS:
        problem = "it runs on the executor 'memory' or 'simulated'; leave `executor` out"
    elif settings.executor.name == "simulated" and "seconds_per_step" in scenario.model_fields_set:
        problem = (
            "the cost model says how long a step of the executor 'simulated' takes; leave "
            "`seconds_per_step` out"
        )
    elif (num_reads := _num_reads(scenario, settings.max_model_len)) > MAX_READS:
        problem = (
            f"its steps would read {num_reads:,} tokens back, and a replay reads {MAX_READS:,} at "
            "most; shorten the outputs or lower max_model_len"
        )
    if problem:
        raise SettingsError(f"scenario {scenario.name!r}: {problem}")


def _num_reads(scenario: Scenario, max_model_len: int | None) -> int:
    """Tokens read back at most: each output token takes a step that reads its whole sequence."""
    total = 0
    for first in scenario.asked:
        for request, whole in first.whole_prompts():
            length = min(whole + request.output, max_model_len or 2048)
            total += request.n * length * max(0, length - whole)
    return total
