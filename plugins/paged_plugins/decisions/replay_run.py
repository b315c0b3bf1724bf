"""One run of a scenario on an engine: its arrivals, its steps, its time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from math import inf
from operator import attrgetter
from typing import Any

from paged_core.engine.clock import Clock
from paged_core.engine.driver import IDLE_SECONDS
from paged_core.engine.engine import Engine
from paged_core.errors import PluginError
from paged_core.ids import SeqId
from paged_core.interfaces.executor import Executor
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceGroup
from paged_core.step import StepResult
from paged_plugins.decisions.scenario import Scenario, ScenarioAbort
from paged_plugins.decisions.trace import TraceLines
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.serving import Arrival, Arrivals, deciding_sequence

_TIE_SECONDS = 1e-6
"""Between arrivals before one step, so that they are in the order of the scenario."""
_GOES_ON = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT)
"""Ends of a request that others may follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """One request that ended. Times are seconds from the start of the replay."""

    id: str
    arrived: float
    first_token: float | None
    """When its first token was there; ``None``: it sampled none."""
    finished: float
    num_prompt: int
    num_cached: int
    """Prompt tokens that the prefix cache served when it was first admitted."""
    num_output: int
    """Tokens of its first sequence."""
    finish_reason: str

    @property
    def ttft(self) -> float | None:
        """Seconds from its arrival to its first token."""
        return None if self.first_token is None else self.first_token - self.arrived

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; ``None``: it has one token at most."""
        if self.first_token is None or self.num_output < 2:
            return None
        return (self.finished - self.first_token) / (self.num_output - 1)

    def values(self) -> dict[str, Any]:
        """Return all of it as plain values; seconds to the nanosecond."""
        values = asdict(self) | {"ttft": self.ttft, "tpot": self.tpot}
        return {
            key: round(value, 9) if isinstance(value, float) else value
            for key, value in values.items()
        }


@dataclass(slots=True)
class Outcome:
    """Facts that a trace does not contain, filled in while the scenario is replayed."""

    refused: dict[str, str] = field(default_factory=dict)
    """Requests that were refused or ignored, with the reason."""
    errors: dict[str, str] = field(default_factory=dict)
    """Requests that ended with an error, with its text."""
    unfinished: list[str] = field(default_factory=list)
    """Requests that were unfinished when ``max_steps`` was reached."""
    vain_aborts: list[ScenarioAbort] = field(default_factory=list)
    """Aborts that ended no request."""
    requests: list[RequestTimes] = field(default_factory=list)
    """Requests that ran, in the order in which they ended."""


class LastStep(Observer):
    """Keeps the record of the last step."""

    record: StepRecord

    def on_step(self, step: StepRecord, /) -> None:
        self.record = step


class ReplayRun:
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
        self._before: defaultdict[int, list[WorkloadRequest]] = defaultdict(list)
        """By step, requests that arrive just before it, where the step is not known."""
        timed = []
        for request in scenario.asked:
            written = scenario.written.get(request.id)
            step = written.step if written is not None and written.at is None else None
            at = request.at if step is None else timeline.begins(step)
            if at is not None:
                timed.append(replace(request, at=at))
            elif step is not None:
                self._before[step].append(request)
        self._to_come = Arrivals(sorted(timed, key=attrgetter("at")))
        self._aborts: defaultdict[int, list[str]] = defaultdict(list)
        self._aborts_once_planned: defaultdict[int, list[str]] = defaultdict(list)
        for abort in scenario.aborts:
            when = self._aborts_once_planned if abort.planned else self._aborts
            when[abort.step].append(abort.id)
        if self._aborts_once_planned:
            self._watch(engine.executor)
        self._aborted: set[tuple[str, int]] = set()
        self._lines = TraceLines()
        self._in_flight: dict[str, Arrival] = {}
        self._left = dict.fromkeys(scenario.numbers)
        """Requests that have not arrived, and may."""

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
            elif not timeline.skip(min(self._before, default=None), self._to_come.next_at):
                break
        else:
            self._outcome.unfinished += [*(group.id for group in engine.groups), *self._left]
        self._outcome.vain_aborts += [
            each for each in self._scenario.aborts if (each.id, each.step) not in self._aborted
        ]

    def _arrive(self) -> list[str]:
        """Add the requests that arrive before the next step; return those that are refused."""
        refused = []
        for arrival in self._due():
            asked = arrival.request
            self._left.pop(asked.id)
            refusal, told = None, self._outcome.refused
            try:
                refusal = self._engine.offer(self._request(arrival))
            except PluginError as error:
                refusal, told = str(error), self._outcome.errors
            if refusal is not None:
                told[asked.id] = refusal
                refused += [asked.id, *self._give_up(asked)]
            else:
                self._in_flight[asked.id] = arrival
        return refused

    def _due(self) -> Iterator[Arrival]:
        timeline, numbers = self._timeline, self._scenario.numbers
        now = timeline.now()
        for request in self._before.pop(timeline.step, ()):
            yield self._to_come.arrival(request, now)
        yield from sorted(
            self._to_come.due(now),
            key=lambda each: (timeline.moment(each.at), numbers[each.request.id]),
        )

    def _abort(self, request_id: str) -> SequenceGroup | None:
        group = self._engine.abort(request_id)
        if group is not None:
            self._aborted.add((request_id, self._timeline.step))
            self._end(group, self._timeline.now())
        return group

    def _watch(self, executor: Executor) -> None:
        """Abort what is to be aborted between plan and result when a result is asked for."""
        collect = executor.collect

        def collect_after_aborts(handle: Any) -> StepResult:
            gone = self._abort_planned()
            result = collect(handle)
            kept = [row for row, each in enumerate(result.sequence_ids) if each not in gone]
            return replace(
                result,
                sequence_ids=[result.sequence_ids[row] for row in kept],
                token_ids=[result.token_ids[row] for row in kept],
                failed={each: "aborted" for each in result.sequence_ids if each in gone},
            )

        executor.collect = collect_after_aborts  # type: ignore[method-assign]

    def _abort_planned(self) -> set[SeqId]:
        """Abort what is to be aborted once this step is planned; return its sequences."""
        groups = map(self._abort, self._aborts_once_planned.pop(self._timeline.step, ()))
        return {each.id for group in groups if group is not None for each in group.sequences}

    def _one_step(self, refused: list[str]) -> dict[str, Any]:
        dropped: list[str] = []
        outcome = self._engine.step()
        self._abort_planned()  # nothing was computed in this step
        for group in outcome.finished:
            decided = deciding_sequence(group)
            if decided.finish_reason is FinishReason.ERROR:
                self._outcome.errors[group.id] = decided.error or ""
            elif decided.error:
                self._outcome.refused[group.id] = decided.error
            if decided.finish_reason not in _GOES_ON:
                dropped += self._give_up(self._in_flight.pop(group.id).request)
            elif group.id in self._in_flight:  # else it was aborted
                assert group.finished_at is not None
                self._end(group, self._timeline.applied(group.finished_at))
        record = self._last.record
        now = record.now - self._timeline.start
        seconds = self._timeline.seconds(record)
        line = self._lines.line(record, self._timeline.step, now, seconds)
        if not outcome.progressed:
            self._timeline.wait(self._idle_seconds())
        line["ignored"] = [*refused, *line["ignored"], *dropped]
        return line

    def _idle_seconds(self) -> float:
        """Return for how long nothing happens after a step in which nothing could be planned."""
        next_at, held_for = self._to_come.next_at, self._engine.held_for
        comes_in = inf if next_at is None else next_at - self._timeline.now()
        return max(IDLE_SECONDS, min(held_for, comes_in))

    def _end(self, group: SequenceGroup, ended: float) -> None:
        """Note the times of a request that has ended, and let those arrive that follow it."""
        arrival = self._in_flight.pop(group.id)
        first, first_token = group.sequences[0], group.first_token_at
        assert first.finish_reason is not None
        self._outcome.requests.append(
            RequestTimes(
                id=group.id,
                arrived=arrival.at,
                first_token=None if first_token is None else self._timeline.applied(first_token),
                finished=ended,
                num_prompt=len(group.request.prompt),
                num_cached=group.num_cached or 0,
                num_output=len(first.output),
                finish_reason=first.finish_reason.value,
            )
        )
        self._to_come.follow(arrival.request, ended, first.tokens)

    def _give_up(self, request: WorkloadRequest) -> list[str]:
        """Note that none can run that follows a request, directly or not; return their ids."""
        dropped = list(request.followers)
        for each in dropped:  # it grows meanwhile
            dropped += each.followers
            self._left.pop(each.id)
            self._outcome.refused[each.id] = f"it follows {request.id}, which was not completed"
        return [each.id for each in dropped]

    def _request(self, arrival: Arrival) -> Request:
        """Return what the engine is offered; deadlines of written requests, unless they follow
        others, count from the start."""
        start, written = self._timeline.start, self._scenario.written.get(arrival.request.id)
        deadline, delay = None, 0.0
        if written is not None and written.follows is None and written.deadline is not None:
            deadline = start + written.deadline
        if written is not None and self._timeline.begins(0) is not None:
            delay = _TIE_SECONDS * self._scenario.numbers[written.id]
        return arrival.asked(start, deadline=deadline, delay=delay)


class Timeline(ABC):
    """Counts steps, and says when they begin and end, in seconds from the start."""

    def __init__(self) -> None:
        self.step = 0
        """The next step."""

    @property
    @abstractmethod
    def start(self) -> float:
        """When the replay began, on the engine's clock."""

    def begins(self, step: int) -> float | None:
        """Return when a step begins, where that is known beforehand."""
        return None

    def moment(self, at: float) -> float:
        """Return when a request arrives, as it counts for the order of arrivals: those of one
        moment are in the order of the scenario."""
        return at

    @abstractmethod
    def now(self) -> float:
        """Return when the next step begins."""

    @abstractmethod
    def applied(self, at: float) -> float:
        """Return when tokens are there that the engine says it applied at ``at`` on its clock."""

    @abstractmethod
    def seconds(self, record: StepRecord) -> float:
        """Return the time that a step took."""

    def wait(self, seconds: float) -> None:  # noqa: B027
        """Let time pass after a step in which nothing could be planned, if steps alone do not."""

    @abstractmethod
    def skip(self, next_step: int | None, next_at: float | None) -> bool:
        """Go to the next arrival, since nothing is to be done before; ``False``: there is none.

        Args:
            next_step: before which the next one arrives, of those that arrive before a step.
            next_at: when the next one of the others arrives.
        """


class EqualSteps(Timeline):
    """Every step takes equally long, whatever it computes; the engine's clock is :meth:`now`.

    Args:
        seconds_per_step: how long.
        max_steps: the steps from which on nothing is of interest.
    """

    def __init__(self, seconds_per_step: float, max_steps: int) -> None:
        super().__init__()
        self._seconds = seconds_per_step
        self._last = max_steps

    @property
    def start(self) -> float:
        return 0.0

    def begins(self, step: int) -> float:
        return step * self._seconds

    def moment(self, at: float) -> int:
        """Return the first step at or after a time."""
        quotient = at / self._seconds
        if quotient >= self._last:
            return self._last
        nearest = max(0, int(quotient) - 1)  # the quotient is rounded
        return next(step for step in count(nearest) if step * self._seconds >= at)

    def now(self) -> float:
        return self.step * self._seconds

    def applied(self, at: float) -> float:
        return at + self._seconds

    def seconds(self, record: StepRecord) -> float:
        return self._seconds

    def skip(self, next_step: int | None, next_at: float | None) -> bool:
        if next_at is not None:
            self.step = self.moment(next_at)
        return next_at is not None


class ClockTime(Timeline):
    """Steps take the time that passes on a clock meanwhile; steps that are skipped take none."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._start = clock()

    @property
    def start(self) -> float:
        return self._start

    def now(self) -> float:
        return self._clock() - self._start

    def applied(self, at: float) -> float:
        return at - self._start

    def seconds(self, record: StepRecord) -> float:
        return record.ended - record.now

    def wait(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def skip(self, next_step: int | None, next_at: float | None) -> bool:
        if next_step is not None:
            self.step = next_step
        elif next_at is not None:
            self._clock.sleep(next_at - self.now())
        else:
            return False
        return True
