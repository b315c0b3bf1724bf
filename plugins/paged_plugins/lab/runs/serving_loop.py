"""Offers the requests of a workload to an engine when they arrive, and steps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paged_core.clock import Clock, SystemClock
from paged_core.engine import Engine
from paged_core.engine_driver import EngineDriver
from paged_core.errors import EngineError, RequestError
from paged_core.sequence import SequenceGroup
from paged_core.step_outcome import StepOutcome
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.runs.arrivals import Arrival, Arrivals
from paged_plugins.lab.runs.engine_request import engine_request
from paged_plugins.lab.runs.run_collector import RunCollector
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.watched_executor import CountsWork, WatchedExecutor
from paged_plugins.workloads.request import WorkloadRequest


class ServingLoop:
    """Offers requests to an engine when they arrive, and steps it until all have ended.

    Time is the engine's: where nothing is to be done, its clock sleeps until the next arrival.

    Args:
        engine: serves nothing yet; ``collector`` is among its observers.
        drawn: requests that follow no other, by their time ``at``.
    """

    def __init__(
        self, engine: Engine, collector: RunCollector, drawn: Iterator[WorkloadRequest]
    ) -> None:
        if not isinstance(engine.executor, CountsWork):
            engine.executor = WatchedExecutor(engine.executor)
        self._work: list[StepWork] = []
        """Of the steps that were collected and not recorded."""
        engine.executor.watch = self._work.append
        self._engine = engine
        self._driver = EngineDriver(engine)
        self._is_idle = False
        """Whether the last step could do nothing although requests wait."""
        self._clock = engine.clock if isinstance(engine.clock, Clock) else SystemClock()
        self._collector = collector
        self._arrivals = Arrivals(drawn, engine.capacity.vocab_size)
        self._under_way: dict[str, Arrival] = {}

    def run(self, advance: Callable[[int], None]) -> RunRecord:
        """Run to the end.

        Args:
            advance: called with the number of requests that ended, after steps in which some did.

        Raises:
            EngineError: the scheduler plans nothing although requests wait, or what the run did
                could not be recorded.
        """
        clock, collector, engine = self._clock, self._collector, self._engine
        start = collector.start = clock()
        while True:
            now = clock() - start
            self._offer(now)
            if engine.has_unfinished:
                outcome = self._step()
                ended = clock() - start
                collector.step(engine, outcome, self._work, now, ended)
                self._work.clear()
                for group in outcome.finished:
                    self._end(group, ended)
                if outcome.finished:
                    advance(len(outcome.finished))
            elif (following := self._arrivals.next_at) is not None:
                clock.sleep(following - now)
            else:
                break
        if collector not in engine.observers:
            raise EngineError("the record of the run is incomplete; the log names the cause")
        return collector.finish(engine)

    def _step(self) -> StepOutcome:
        """Run one step; while nothing can be planned, the driver idles, and reports a stall."""
        outcome = self._driver.step() if self._is_idle else self._engine.step()
        self._is_idle = not outcome.progressed
        return outcome

    def _offer(self, now: float) -> None:
        """Add the requests that have arrived."""
        for arrival in self._arrivals.due(now):
            self._collector.arrived(arrival)
            try:
                self._engine.add(engine_request(arrival, self._collector.start))
            except RequestError as error:
                self._collector.refused(arrival, now, str(error))
            else:
                self._under_way[arrival.request.id] = arrival

    def _end(self, group: SequenceGroup, now: float) -> None:
        """Record a request that ended, and let those arrive that follow it."""
        arrival = self._under_way.pop(group.id)
        self._collector.ended(group, arrival)
        if arrival.request.followers:
            self._arrivals.follow(arrival.request, now, tuple(group.sequences[0].tokens))
