"""Runs a scenario on an engine without a model and records its decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from typing import Any, Protocol, cast

from paged_core.clock import Clock
from paged_core.config.entry import Entry, Layer, Origin
from paged_core.engine import Engine
from paged_core.errors import SettingsError
from paged_core.interfaces.future import Future
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.registry import Registry
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.settings import EngineSettings, settings_class
from paged_core.step import NewSequence
from paged_core.wiring import build_engine
from paged_plugins.decisions.arrivals import Arrival, Arrivals
from paged_plugins.decisions.replay_request import IDS_PER_REQUEST, whole_lengths
from paged_plugins.decisions.request_times import RequestTimes
from paged_plugins.decisions.scenario import MAX_READS, Scenario
from paged_plugins.decisions.timeline import ClockTime, EqualSteps, Timeline
from paged_plugins.decisions.trace import TraceLines
from paged_plugins.workloads.rehearsal import Admissions, LookUps, RehearsedFuture

_FIRST_GENERATED = 5 * 10**8
_IDS_PER_SEQUENCE = 10**6
_TIE_SECONDS = 1e-6
"""Between arrivals before one step, so that they are in the order of the scenario."""
_EXECUTORS = ("memory", "simulated")
_GOES_ON = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT)
"""How a request ends that others may follow."""


@dataclass(slots=True)
class Outcome:
    """What a trace does not contain, filled in while the scenario is replayed."""

    refused: dict[str, str] = field(default_factory=dict)
    """Requests that were refused or ignored, with the reason."""
    unfinished: list[str] = field(default_factory=list)
    """Requests that were unfinished when ``max_steps`` was reached."""
    requests: list[RequestTimes] = field(default_factory=list)
    """Those that ran, in the order in which they ended."""


def replay(
    scenario: Scenario,
    registry: Registry,
    outcome: Outcome | None = None,
    settings: EngineSettings | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the trace of a scenario, a line per step in which a request is unfinished.

    An evictor that asks for the future gets that of a rehearsal with ``lru``, see
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

    def rehearse() -> dict[str, list[int]]:
        lru = registry.get("evictor", "lru").settings.model_validate({})
        look_ups = LookUps(settings.block_size)
        rehearsed = settings.model_copy(update={"evictor": lru, "observers": ()})
        for _ in _run(scenario, registry, Outcome(), rehearsed, look_ups, Future()):
            pass
        return look_ups.found

    future = RehearsedFuture(rehearse)
    yield from _run(scenario, registry, outcome or Outcome(), settings, Admissions(future), future)


def _run(
    scenario: Scenario,
    registry: Registry,
    outcome: Outcome,
    settings: EngineSettings,
    watch: Observer,
    future: Future,
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
        yield from _Run(scenario, engine, timeline, record, outcome).lines()
    finally:
        engine.close()


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


def settings_layer(scenario: Scenario, where: str = "") -> Layer:
    """Return what a scenario says about settings, to be laid under the other layers.

    Args:
        where: the file that it is written in.
    """
    values = {"executor": "memory", "max_model_len": 2048, **scenario.settings}
    return [Entry((key,), value, Origin("yaml", where)) for key, value in values.items()]


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
    for request, whole in whole_lengths(scenario.asked):
        length = min(whole + request.output, max_model_len or 2048)
        total += request.n * length * max(0, length - whole)
    return total


class _Drawing(Protocol):
    """The attribute of the ``memory`` executor that a replay replaces."""

    draw: Callable[[NewSequence, Sequence[int], int], int]


def _draw(
    numbers: dict[str, int], sequence: NewSequence, tokens: Sequence[int], index: int, /
) -> int:
    """A token that no other sequence generates."""
    own = (numbers[sequence.request_id] + 1) * IDS_PER_REQUEST + _FIRST_GENERATED
    return own + index * _IDS_PER_SEQUENCE + len(tokens)


class LastStep(Observer):
    """Keeps the record of the last step."""

    record: StepRecord

    def on_step(self, step: StepRecord, /) -> None:
        self.record = step


class _Run:
    """One run of a scenario."""

    def __init__(
        self,
        scenario: Scenario,
        engine: Engine,
        timeline: Timeline,
        last: LastStep,
        outcome: Outcome,
    ) -> None:
        self._scenario, self._engine, self._timeline = scenario, engine, timeline
        self._last, self._outcome = last, outcome
        self._to_come = Arrivals(scenario.asked, timeline.step_of)
        self._aborts: defaultdict[int, list[str]] = defaultdict(list)
        for abort in scenario.aborts:
            self._aborts[abort.step].append(abort.id)
        self._sampling = cache(partial(SamplingParams, ignore_eos=True))
        self._lines = TraceLines()
        self._arrived: dict[str, float] = {}
        """When requests that have not ended arrived, in seconds from the start."""

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the trace."""
        timeline, engine = self._timeline, self._engine
        while timeline.step < self._scenario.max_steps:
            refused = self._arrive()
            for request_id in self._aborts.get(timeline.step, ()):
                self._abort(request_id)
            if engine.has_unfinished or refused:
                yield self._one_step(refused)
                timeline.step += 1
            elif not timeline.skip(self._to_come):
                return
        self._outcome.unfinished += [group.id for group in engine.groups]
        self._outcome.unfinished += self._to_come.left()

    def _arrive(self) -> list[str]:
        """Add the requests that arrive before the next step; return those that are refused."""
        refused = []
        for arrival in self._to_come.due(self._timeline.step, self._timeline.now()):
            request = self._request(arrival)
            refusal = self._engine.offer(request)
            if refusal is not None:
                self._outcome.refused[request.id] = refusal
                refused += [request.id, *self._give_up(request.id)]
            else:
                self._arrived[request.id] = self._time_of(arrival)
        return refused

    def _abort(self, request_id: str) -> None:
        group = self._engine.abort(request_id)
        if group is not None:
            self._end(group, self._timeline.now())

    def _one_step(self, refused: list[str]) -> dict[str, Any]:
        dropped: list[str] = []
        outcome = self._engine.step()
        for group in outcome.finished:
            first = group.sequences[0]
            if first.error:
                self._outcome.refused[group.id] = first.error
            if first.finish_reason not in _GOES_ON:
                dropped += self._give_up(group.id)
            elif group.id in self._arrived:  # else it was aborted
                assert group.finished_at is not None
                self._end(group, self._timeline.applied(group.finished_at))
        record = self._last.record
        now = record.now - self._timeline.start
        seconds = self._timeline.seconds(record)
        line = self._lines.line(record, self._timeline.step, now, seconds)
        if not outcome.progressed:
            self._timeline.wait()
        line["ignored"] = [*refused, *line["ignored"], *dropped]
        return line

    def _end(self, group: SequenceGroup, ended: float) -> None:
        """Note the times of a request that has ended, and let those arrive that follow it."""
        first, first_token = group.sequences[0], group.first_token_at
        assert first.finish_reason is not None
        self._outcome.requests.append(
            RequestTimes(
                id=group.id,
                arrived=self._arrived.pop(group.id),
                first_token=None if first_token is None else self._timeline.applied(first_token),
                finished=ended,
                num_prompt=len(group.request.prompt),
                num_cached=group.num_cached or 0,
                num_output=len(first.output),
                finish_reason=first.finish_reason.value,
            )
        )
        self._to_come.follow(group.id, ended, first.tokens)

    def _give_up(self, request_id: str) -> list[str]:
        """Note that none can run that follows a request; return their ids."""
        self._arrived.pop(request_id, None)
        dropped = self._to_come.drop(request_id)
        for each in dropped:
            self._outcome.refused[each] = f"it follows {request_id}, which was not completed"
        return dropped

    def _time_of(self, arrival: Arrival) -> float:
        """When a request arrives that is due, in seconds from the start."""
        return self._timeline.now() if arrival.at is None else arrival.at

    def _request(self, arrival: Arrival) -> Request:
        asked, start = arrival.request, self._timeline.start
        at = self._time_of(arrival)
        is_written = asked.number < len(self._scenario.requests)
        tie = _TIE_SECONDS * asked.number if is_written and self._timeline.step_of else 0.0
        deadline = asked.deadline
        if deadline is not None:
            deadline += start if asked.follows is None else start + at
        own = chain.from_iterable(asked.prompt)
        return Request(
            id=asked.id,
            prompt=(*arrival.before, *own),
            sampling=self._sampling(n=asked.n, max_tokens=asked.output),
            priority=asked.priority,
            arrival=start + at + tie,
            cache_salt=asked.cache_salt,
            tenant=asked.tenant,
            deadline=deadline,
        )
