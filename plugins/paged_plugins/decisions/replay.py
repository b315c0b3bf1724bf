"""Runs a scenario on an engine without a model and records its decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

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
from paged_plugins.decisions.scenario import Scenario, ScenarioRequest
from paged_plugins.decisions.trace import trace_line

_IDS_PER_REQUEST = 10**9
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
    scenario: Scenario, registry: Registry, outcome: Outcome | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the trace of a scenario, a line per step in which a request is unfinished.

    Only the scenario matters: neither the environment nor a settings file is read.

    Args:
        outcome: is filled in with what the trace does not contain.

    Raises:
        SettingsError: the scenario's settings are invalid.
    """
    settings = settings_of(scenario, registry)
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
        settings = settings_class(registry)(
            **{"executor": "memory", "max_model_len": 2048, **scenario.settings}
        )
    except SettingsError as error:
        raise SettingsError(f"scenario {scenario.name!r}: {error}") from None
    if settings.async_scheduling is True:
        raise SettingsError(
            f"scenario {scenario.name!r}: a replay decides after each result; leave "
            "`async_scheduling` out"
        )
    if settings.executor.name != "memory":
        raise SettingsError(
            f"scenario {scenario.name!r}: it runs on the executor 'memory'; leave `executor` out"
        )
    return settings


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
        scenario = self._scenario
        to_come = list(enumerate(scenario.requests))
        for self._step in range(scenario.max_steps):
            due = [item for item in to_come if self._is_due(item[1])]
            to_come = [item for item in to_come if item not in due]
            refused = [
                request.id for number, request in due if not self._add(engine, number, request)
            ]
            for abort in scenario.aborts:
                if abort.step == self._step:
                    engine.abort(abort.id)
            if engine.has_unfinished or refused:
                for group in engine.step().finished:
                    if group.sequences[0].error:
                        self._outcome.refused[group.id] = group.sequences[0].error
                assert self._record is not None
                line = trace_line(self._record, self._step)
                line["ignored"] = refused + line["ignored"]
                yield line
            elif not to_come:
                return
        self._outcome.unfinished += [group.id for group in engine.groups]
        self._outcome.unfinished += [request.id for _, request in to_come]

    def _is_due(self, request: ScenarioRequest) -> bool:
        if request.at is None:
            return request.step <= self._step
        return request.at <= self.now()

    def _add(self, engine: Engine, number: int, request: ScenarioRequest) -> bool:
        """Add a request to the engine; return false if its scheduler refused it."""
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
            sampling=SamplingParams(n=request.n, max_tokens=request.output, ignore_eos=True),
            priority=request.priority,
            arrival=self._arrival(number, request),
            cache_salt=request.cache_salt,
            tenant=request.tenant,
            deadline=request.deadline,
        )
