"""Serves a workload on a simulated cluster, event by event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from paged_core.engine.clock import Clock
from paged_core.engine.contexts import Maker
from paged_core.engine.driver import EngineDriver
from paged_core.engine.engine import Engine
from paged_core.engine.outcome import StepOutcome
from paged_core.engine.wiring import build_engine
from paged_core.errors import EngineError, PluginError, RequestError, SettingsError
from paged_core.interfaces.executor import SupportsClock
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.sequence import SequenceGroup
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.runs.run_record import (
    ReplicaTotals,
    RequestRecord,
    RunRecord,
    RunTotals,
    ended_record,
    refused_records,
)
from paged_plugins.lab.runs.run_workload import derived_seed
from paged_plugins.lab.runs.shadows import Baseline, DecisionWatch
from paged_plugins.lab.runs.time_histogram import TokenGaps
from paged_plugins.lab.runs.work_count import CountsWork
from paged_plugins.routing.block_events import BlockEvents, BlockEventsSettings
from paged_plugins.routing.checked_router import CheckedRouter
from paged_plugins.routing.load_book import LoadBook, RoutedRequest
from paged_plugins.routing.observer_files import with_own_files
from paged_plugins.routing.router import BlockChange, RouterContext
from paged_plugins.workloads.serving import Arrival, Arrivals, Refusal, deciding_sequence
from paged_plugins.workloads.workload import Workload


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
        self._executor = executor
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
        clock, started = self._clock, self._at(now)
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

    def add(self, request: Request, now: float) -> None:
        """Give the engine a request; while a step is in flight its clock shows the end of that.

        Raises: as :meth:`Engine.add`.
        """
        self._at(now)
        self.engine.add(request)

    def held_until(self, now: float) -> float:
        """Return until when all of its requests are held back; ``now``: one is not."""
        started, held_for = self._at(now), self.engine.held_for
        return started + held_for if held_for else now

    def _at(self, now: float) -> float:
        """Let the engine's clock show ``now`` at least; return what it shows."""
        while (shown := self._clock()) < now:  # a sum of differences may fall short by a rounding
            self._clock.sleep(now - shown)
        return shown

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
            extrapolated_steps=self._executor.num_extrapolated,
        )


DEFAULT_ROUTER = "round_robin"
"""Where the settings name none."""
MAX_REPLICAS = 100_000
"""So many engines fit no machine; what asks for more is a mistake."""


OnRequest = Callable[[RequestRecord, int], None]
"""Called with each request that ended, and the number of its replica."""
_SUMMED = (
    *("num_steps", "extrapolated_steps", "busy_seconds", "scheduled_tokens"),
    *("num_preemptions", "num_evictions"),
)


def simulate_cluster(
    settings: EngineSettings,
    registry: Registry,
    workload: Workload,
    seed: int,
    *,
    num_replicas: int,
    on_request: OnRequest = lambda request, replica: None,
    advance: Callable[[int], None] = lambda num_ended: None,
    baseline: Baseline | None = None,
) -> RunRecord:
    """Serve a workload on ``num_replicas`` equal engines behind the router that the settings name.

    Equal settings, workloads and seeds give equal records.

    Args:
        settings: of each engine; without a ``router``, requests go to each replica in turn.
        seed: of the workload; what engines and router draw goes by it and the setting ``seed``.
        on_request: called with each request that ended, in that order.
        advance: called with the number of requests that have ended since its last call.
        baseline: as of :func:`~paged_plugins.lab.runs.run_workload.run_workload`.

    Raises:
        SettingsError: the engines cannot be simulated.
        EngineError: a scheduler plans nothing although requests wait, or the router raises or names
            no replica.
    """
    if not 1 <= num_replicas <= MAX_REPLICAS:
        raise SettingsError(f"{num_replicas} replicas; there may be 1 to {MAX_REPLICAS:,}")
    if settings.async_scheduling is True:
        raise SettingsError(
            "in a cluster a step is planned when the last one has ended; "
            "leave `async_scheduling` out"
        )
    settings = settings.model_copy(update={"seed": derived_seed(seed, "setting", settings.seed)})
    watch = DecisionWatch(baseline, registry)
    registry = watch.registry
    with ExitStack() as stack:
        router = make_router(settings, registry)
        if router.wants_block_events:
            settings = with_block_events(settings)
        token_gaps: dict[int, int] = {}
        replicas = []
        for number in range(num_replicas):
            own = with_own_files(settings, number) if num_replicas > 1 else settings
            own = own.model_copy(update={"seed": derived_seed(settings.seed, "replica", number)})
            replicas.append(_build_replica(number, own, registry, token_gaps))
            stack.callback(replicas[-1].engine.close)
        loop = _EventLoop(replicas, router, workload, seed, on_request, advance)
        loop.run()
        loop.record.asked = watch.counts
        return _finished(loop.record, [replica.totals() for replica in replicas], token_gaps)


def _finished(
    record: RunRecord, replicas: Sequence[RunTotals], token_gaps: Mapping[int, int]
) -> RunRecord:
    """Return the record of a run that has ended, with what the engine of each replica did."""
    totals, requests = record.totals, record.requests
    for name in _SUMMED:
        setattr(totals, name, sum(getattr(each, name) for each in replicas))
    totals.peak_blocks = max(each.peak_blocks for each in replicas)
    if requests:
        first = min(each.arrival for each in requests)
        totals.elapsed = max(each.finished for each in requests) - first
    needed = sum(each.needed_tokens for each in requests)
    totals.recomputed_tokens = max(0, totals.scheduled_tokens - needed)
    for of_replica, of_engine in zip(record.replicas, replicas, strict=True):
        of_replica.num_steps = of_engine.num_steps
        of_replica.busy_seconds = of_engine.busy_seconds
    record.token_gaps = dict(sorted(token_gaps.items()))
    return record


class _Live(NamedTuple):
    """A request that has arrived and not ended."""

    arrival: Arrival
    routed: RoutedRequest


class _EventLoop:
    """Serves the arrivals on the replicas, event by event in the order of their time.

    Of events at the same time, steps end first, so that what they free and who follows them is
    known; then requests arrive; then steps begin, which can plan all of these. Ties among replicas
    are broken by their number.

    Args:
        advance: called with the number of requests that have ended since its last call.
    """

    def __init__(
        self,
        replicas: list[Replica],
        router: CheckedRouter,
        workload: Workload,
        seed: int,
        on_request: OnRequest,
        advance: Callable[[int], None],
    ) -> None:
        capacity = replicas[0].engine.capacity
        self._replicas = replicas
        self._router = router
        self._book = LoadBook(router)
        for number in range(len(replicas)):
            self._book.joined(number, capacity.num_blocks)
            self._book.offer(number)
        self._arrivals = Arrivals(workload.draw(seed), capacity.vocab_size)
        self.record = RunRecord(replicas=[ReplicaTotals() for _ in replicas])
        """Requests that have ended, and what the replicas did for them."""
        self._on_request = on_request
        self._advance = advance
        self._live: dict[str, _Live] = {}
        """By id."""
        self._ends: list[tuple[float, int]] = []
        """A heap: when the step in flight of each busy replica ends."""
        self._wakes: list[tuple[float, int]] = []
        """A heap: when replicas may have to do again that hold all of their requests back."""

    def run(self) -> None:
        """Serve all requests."""
        while (now := self._next_event()) < inf:
            may_begin = {*self._end_steps(now), *map(self._arrive, self._arrivals.due(now))}
            while self._wakes and self._wakes[0][0] <= now:
                may_begin.add(heappop(self._wakes)[1])
            for number in sorted(may_begin):
                replica = self._replicas[number]
                if not replica.engine.has_unfinished or replica.is_busy:
                    continue
                if (until := replica.held_until(now)) > now:
                    heappush(self._wakes, (until, number))
                else:
                    heappush(self._ends, (replica.begin_step(now), number))

    def _next_event(self) -> float:
        at = self._arrivals.next_at
        times = [heap[0][0] for heap in (self._ends, self._wakes) if heap]
        return min([*times, inf if at is None else at])

    def _end_steps(self, now: float) -> Iterator[int]:
        """End the steps in flight that end by now; yield the numbers of their replicas."""
        while self._ends and self._ends[0][0] <= now:
            number = heappop(self._ends)[1]
            replica = self._replicas[number]
            num_tokens, groups = replica.end_step()
            self._book.loads[number].num_tokens += num_tokens
            if changes := replica.block_changes():
                self._router.blocks_changed(number, changes)
            for group in groups:
                self._end(group, number, now)
            if groups:
                self._advance(len(groups))
            yield number

    def _end(self, group: SequenceGroup, number: int, now: float) -> None:
        arrival, routed = self._live.pop(group.id)
        routed.ended()
        record = ended_record(group, arrival, 0.0)
        self._add(record, number)
        self.record.tell(record.is_failed, deciding_sequence(group).error)
        if arrival.request.followers:
            self._arrivals.follow(arrival.request, now, tuple(group.sequences[0].tokens))

    def _arrive(self, arrival: Arrival) -> int:
        """Send a request to a replica; return the number of this."""
        request = arrival.asked(0.0)
        routed = self._book.route(request, arrival.request.session)
        try:
            self._replicas[routed.replica].add(request, arrival.at)
        except (RequestError, PluginError) as error:
            routed.ended()
            refusal = Refusal.of(error)
            records = list(refused_records(arrival, arrival.at, refusal))
            for record in records:
                self._add(record, routed.replica)
            self.record.tell(refusal.is_error, refusal.reason)
            self._advance(len(records))
        else:
            self._live[request.id] = _Live(arrival, routed)
        return routed.replica

    def _add(self, request: RequestRecord, replica: int) -> None:
        request = replace(request, replica=replica)
        self.record.requests.append(request)
        self._on_request(request, replica)
        totals = self.record.replicas[replica]
        totals.num_requests += 1
        totals.num_generated += request.num_output
        totals.num_prompt += request.num_prompt
        totals.num_cached += request.num_cached


def _build_replica(
    number: int, settings: EngineSettings, registry: Registry, token_gaps: dict[int, int]
) -> Replica:
    """Build an engine of a cluster; SettingsError if it cannot be simulated."""
    engine = build_engine(settings, registry)
    executor = engine.executor
    if not (isinstance(executor, SupportsClock) and isinstance(executor, CountsWork)):
        engine.close()
        raise SettingsError(
            f"executor {settings.executor.name!r} runs in real time, and a cluster is simulated; "
            "set executor to simulated"
        )
    return Replica(number, engine, executor, executor.clock, token_gaps)


def make_router(settings: EngineSettings, registry: Registry) -> CheckedRouter:
    """Return the router that settings name, which no replica has joined."""
    options = router_options(settings, registry)
    maker = Maker(settings, registry)
    context = RouterContext(block_size=settings.block_size, seed=settings.seed, maker=maker)
    return CheckedRouter(make_component(registry, "router", options, context), options.name)


def with_block_events(settings: EngineSettings) -> EngineSettings:
    """Return settings of an engine that tells what its prefix cache holds."""
    if any(isinstance(each, BlockEventsSettings) for each in settings.observers):
        return settings
    observers = (*settings.observers, BlockEventsSettings())
    return settings.model_copy(update={"observers": observers})


def check_slot(registry: Registry) -> None:
    """Raise SettingsError, with the remedy, if there are no routers."""
    if "router" not in registry.slots:
        message = (
            "several replicas need a router, and the slot 'router' is missing: the plugin "
            "'replicas' declares it; do not block that plugin, or give one replica"
        )
        raise SettingsError("\n".join((message, *registry.notes)))


def router_options(settings: EngineSettings, registry: Registry) -> ComponentSettings:
    """Return the options of the router that settings name, or of ``round_robin``."""
    check_slot(registry)
    chosen = dict(settings)["router"]
    if isinstance(chosen, ComponentSettings):
        return chosen
    return registry.get("router", DEFAULT_ROUTER).settings.model_validate({})
