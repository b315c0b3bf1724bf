"""One engine of a cluster, and what it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paged_core.engine.clock import Clock
from paged_core.engine.driver import EngineDriver
from paged_core.engine.engine import Engine
from paged_core.engine.outcome import StepOutcome
from paged_core.errors import EngineError
from paged_core.sequence import SequenceGroup
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.runs.run_record import RunTotals
from paged_plugins.lab.runs.time_histogram import TokenGaps
from paged_plugins.lab.runs.work_count import CountsWork
from paged_plugins.routing.block_events import BlockEvents
from paged_plugins.routing.router import BlockChange


class Replica:
    """An engine whose steps take virtual time: the result of a step is known when it has ended.

    The engine runs a whole step at once, which moves its clock to the end of the step. What it did
    is kept back until :meth:`end_step`, so that a router that is asked meanwhile knows nothing of
    it; a request that is added meanwhile is planned by the next step.

    Args:
        engine: without steps in flight between its calls.
        executor: that engine's.
        clock: that engine's, and of no other.
        token_gaps: times between tokens of a sequence are counted in it, by bucket.
    """

    def __init__(
        self,
        number: int,
        engine: Engine,
        executor: CountsWork,
        clock: Clock,
        token_gaps: dict[int, int],
    ) -> None:
        self.number = number
        self.engine = engine
        self._totals = RunTotals()
        self._clock = clock
        self._driver = EngineDriver(engine)
        self._gaps = TokenGaps(token_gaps)
        self._in_flight: StepOutcome | None = None
        executor.watch = self._computed
        self._block_events = next(
            (each for each in engine.observers if isinstance(each, BlockEvents)), None
        )
        self._since = 0
        """The number of the next of them."""

    def _computed(self, work: StepWork) -> None:
        self._totals.count(work)
        self._totals.look(self.engine.kv_cache)

    @property
    def is_busy(self) -> bool:
        """True if a step is in flight."""
        return self._in_flight is not None

    def begin_step(self, now: float) -> float:
        """Begin a step; return when it ends, ``now`` or later.

        Raises:
            EngineError: nothing was planned although requests wait; see ``STALL_SECONDS``.
        """
        assert self._in_flight is None
        clock = self._clock
        while (started := clock()) < now:  # a sum of differences may fall short by a rounding
            clock.sleep(now - started)
        self._in_flight = outcome = self.engine.step()
        ended = clock()
        self._totals.busy_seconds += ended - started
        self._gaps.step(outcome.advanced, ended)
        if outcome.progressed or not self.engine.has_unfinished:
            return ended
        try:
            self._in_flight = self._driver.step()  # it pauses, and reports a stall
        except EngineError as error:
            raise EngineError(f"replica {self.number}: {error}") from error
        return clock()

    def end_step(self) -> tuple[int, Sequence[SequenceGroup]]:
        """End the step in flight.

        Returns:
            By how many tokens the load changes: those drawn, without those of the answers of the
            requests that ended. And the requests that ended.
        """
        outcome = self._in_flight
        assert outcome is not None
        self._in_flight = None
        num_tokens = len(outcome.tokens)
        for group in outcome.finished:
            num_prompt = len(group.request.prompt)
            num_tokens -= sum(len(sequence.tokens) - num_prompt for sequence in group.sequences)
        return num_tokens, outcome.finished

    def block_changes(self) -> Sequence[BlockChange]:
        """Return what changed in the prefix cache since the last call, where that is observed."""
        if self._block_events is None:
            return ()
        report = self._block_events.report(self._since)
        self._since = report["next"]
        changes: Sequence[BlockChange] = report["events"]
        return changes

    def totals(self) -> RunTotals:
        """Return what it has done so far."""
        metrics = self.engine.metrics
        return replace(
            self._totals,
            num_preemptions=metrics.num_preemptions,
            num_evictions=metrics.num_evictions,
        )
