"""Runs a scenario on an engine without a model and records its decisions."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from operator import itemgetter
from typing import Any, Protocol, cast

from paged_core.config.entry import Entry, Layer, Origin
from paged_core.engine import Engine
from paged_core.errors import SettingsError
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.registry import Registry
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.settings import EngineSettings, settings_class
from paged_core.step import NewSequence
from paged_core.wiring import build_engine
from paged_plugins.decisions.foresight import foresee
from paged_plugins.decisions.scenario import (
    FIRST_OWN_ID,
    MAX_READS,
    Scenario,
    ScenarioRequest,
)
from paged_plugins.decisions.trace import trace_line

_IDS_PER_REQUEST = FIRST_OWN_ID
_FIRST_GENERATED = 5 * 10**8
_IDS_PER_SEQUENCE = 10**6


@dataclass(slots=True)
class Outcome:
    """What a trace does not contain, filled in while the scenario is replayed."""

    refused: dict[str, str] = field(default_factory=dict)
    """Requests that were refused or ignored, with the reason."""
    unfinished: list[str] = field(default_factory=list)
    """Requests that were unfinished when ``max_steps`` was reached."""


def replay(
    scenario: Scenario,
    registry: Registry,
    outcome: Outcome | None = None,
    settings: EngineSettings | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the trace of a scenario, a line per step in which a request is unfinished.

    Args:
        outcome: is filled in with what the trace does not contain.
        settings: instead of the scenario's own; without them, neither the environment nor a
            settings file is read.

    Raises:
        SettingsError: the scenario's settings are invalid, or make the replay too long; what
            ``settings`` says is the caller's to check, by :func:`check_settings`.
    """
    settings = settings or settings_of(scenario, registry)
    run = _Run(scenario, outcome or Outcome(), settings.block_size)
    engine = build_engine(settings, registry, clock=run.now, observers=[run], future=run.future)
    cast("_Drawing", engine.executor).draw = run.draw
    try:
        yield from run.steps(engine)
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
    elif settings.executor.name != "memory":
        problem = "it runs on the executor 'memory'; leave `executor` out"
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
    for request in scenario.requests:
        length = min(request.length + request.output, max_model_len or 2048)
        total += request.n * length * max(0, length - request.length)
    return total


class _Drawing(Protocol):
    """The attribute of the ``memory`` executor that a replay replaces."""

    draw: Callable[[NewSequence, Sequence[int], int], int]


class _Run(Observer):
    """The state of a replay: the clock, the generated tokens, the record of the last step."""

    def __init__(self, scenario: Scenario, outcome: Outcome, block_size: int) -> None:
        self._scenario = scenario
        self._outcome = outcome
        self._step = 0
        self._record: StepRecord | None = None
        self._numbers = {request.id: i for i, request in enumerate(scenario.requests)}
        requests = list(enumerate(scenario.requests))
        arrivals = ((self._step_of(request), number, request) for number, request in requests)
        self._to_come = deque(sorted(arrivals, key=itemgetter(0)))
        """Requests by the step in which they arrive, then in the order of the scenario."""
        self._aborts: defaultdict[int, list[str]] = defaultdict(list)
        for abort in scenario.aborts:
            self._aborts[abort.step].append(abort.id)
        self._sampling = cache(partial(SamplingParams, ignore_eos=True))
        requests.sort(key=lambda item: self._arrival(*item))
        self._places = {request.id: place for place, (_, request) in enumerate(requests)}
        self.future = foresee((self._request(*item) for item in requests), block_size)
        """The blocks that the requests will look up in the prefix cache, in arrival order."""

    def now(self) -> float:
        """The virtual clock."""
        return self._step * self._scenario.seconds_per_step

    def on_step(self, step: StepRecord, /) -> None:
        self._record = step

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "admitted":
            self.future.reach(self._places[group.id] + 1)

    def draw(self, sequence: NewSequence, tokens: Sequence[int], index: int, /) -> int:
        """A token that no other sequence generates."""
        own = (self._numbers[sequence.request_id] + 1) * _IDS_PER_REQUEST + _FIRST_GENERATED
        return own + index * _IDS_PER_SEQUENCE + len(tokens)

    def steps(self, engine: Engine) -> Iterator[dict[str, Any]]:
        scenario, to_come, aborts = self._scenario, self._to_come, self._aborts
        while self._step < scenario.max_steps:
            refused = []
            while to_come and to_come[0][0] <= self._step:
                _, number, request = to_come.popleft()
                if not self._add(engine, number, request):
                    refused.append(request.id)
            for request_id in aborts.get(self._step, ()):
                engine.abort(request_id)
            if engine.has_unfinished or refused:
                yield self._one_step(engine, refused)
                self._step += 1
            elif to_come:
                self._step = to_come[0][0]  # nothing can happen before
            else:
                return
        self._outcome.unfinished += [group.id for group in engine.groups]
        self._outcome.unfinished += [request.id for _, _, request in to_come]

    def _one_step(self, engine: Engine, refused: list[str]) -> dict[str, Any]:
        for group in engine.step().finished:
            if group.sequences[0].error:
                self._outcome.refused[group.id] = group.sequences[0].error
        assert self._record is not None
        line = trace_line(self._record, self._step)
        line["ignored"] = refused + line["ignored"]
        return line

    def _step_of(self, request: ScenarioRequest) -> int:
        """The first step that is planned when a request has arrived."""
        if request.at is None:
            return request.step
        seconds, last = self._scenario.seconds_per_step, self._scenario.max_steps
        quotient = request.at / seconds
        if quotient >= last:
            return last
        nearest = max(0, int(quotient) - 1)  # the quotient is rounded
        return next(step for step in count(nearest) if step * seconds >= request.at)

    def _add(self, engine: Engine, number: int, request: ScenarioRequest) -> bool:
        """Add a request to the engine; return false if it was refused."""
        refusal = engine.offer(self._request(number, request))
        if refusal is not None:
            self._outcome.refused[request.id] = refusal
        return refusal is None

    def _arrival(self, number: int, request: ScenarioRequest) -> float:
        """Arrival in seconds; ties are broken by the order in the scenario."""
        start = request.step * self._scenario.seconds_per_step if request.at is None else request.at
        return start + 1e-6 * number

    def _request(self, number: int, request: ScenarioRequest) -> Request:
        return Request(
            id=request.id,
            prompt=request.tokens((number + 1) * _IDS_PER_REQUEST),
            sampling=self._sampling(n=request.n, max_tokens=request.output),
            priority=request.priority,
            arrival=self._arrival(number, request),
            cache_salt=request.cache_salt,
            tenant=request.tenant,
            deadline=request.deadline,
        )
