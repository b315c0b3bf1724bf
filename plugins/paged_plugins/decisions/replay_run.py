"""One run of a scenario on an engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain
from typing import Any

from paged_core.engine import Engine
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_plugins.decisions.arrivals import Arrival, Arrivals
from paged_plugins.decisions.outcome import Outcome
from paged_plugins.decisions.request_times import RequestTimes
from paged_plugins.decisions.scenario import Scenario
from paged_plugins.decisions.timeline import Timeline
from paged_plugins.decisions.trace import TraceLines

_TIE_SECONDS = 1e-6
"""Between arrivals before one step, so that they are in the order of the scenario."""
_GOES_ON = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT)
"""How a request ends that others may follow."""


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
