"""Runs a workload on an engine and records what it did, in virtual or in real time."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.clock import Clock
from paged_core.engine.driver import EngineDriver
from paged_core.engine.engine import Engine
from paged_core.engine.outcome import StepOutcome
from paged_core.engine.wiring import build_engine
from paged_core.errors import EngineError
from paged_core.ids import BlockId
from paged_core.interfaces.executor import SupportsClock
from paged_core.interfaces.observer import Observer
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.requests.lookup_oracle import LookupOracle
from paged_core.sequence import SequenceGroup, Status
from paged_core.settings.schema import EngineSettings
from paged_core.step import StepInput
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.runs.run_record import (
    RunRecord,
    StepSample,
    ended_record,
    refused_records,
)
from paged_plugins.lab.runs.shadows import Baseline, DecisionWatch
from paged_plugins.lab.runs.time_histogram import TokenGaps
from paged_plugins.lab.runs.work_count import CountsWork, WatchedExecutor
from paged_plugins.lab.settings import SIMULATED
from paged_plugins.workloads.rehearsal import Admissions, RehearsedOracle
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.serving import (
    Arrival,
    Arrivals,
    Refusal,
    ServingLoop,
    deciding_sequence,
    exact_sampling,
)
from paged_plugins.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Slots by what they are used for, as in figure 2 of the PagedAttention paper (Kwon et al.,
    SOSP 2023); the rest can be used by requests that wait."""

    held: int
    """Hold the state of a token; a block that several sequences share counts once."""
    reserved: int
    """Slots of held blocks that will hold a token later."""
    internal: int
    """Slots of held blocks that never will (internal fragmentation)."""
    external: int
    """Free, but in runs too short for the request that waits longest (external fragmentation)."""
    idle: int
    """Free, but findable by their content until they are evicted."""


def memory_use(
    kv_cache: KVCache, running: Iterable[SequenceGroup], waiting: SequenceGroup | None
) -> MemoryUse:
    """Look at the blocks of the running requests that are not full; all others in use are.

    Args:
        running: all requests that hold blocks.
        waiting: the request that waits longest.
    """
    size = kv_cache.block_size
    tails: dict[BlockId, tuple[int, int]] = {}
    for group in running:
        last = group.max_length - 1  # the state of the last token is never computed
        for sequence in group.live:
            table, held = sequence.table, sequence.num_computed
            for index in range(max(held // size, table.num_cached), len(table.blocks)):
                block, start = table.blocks[index], index * size
                now = max(0, held - start)
                later = max(now, min(size, last - start))
                if block in tails:  # shared since a fork
                    now, later = max(now, tails[block][0]), max(later, tails[block][1])
                tails[block] = now, later
    full = kv_cache.num_blocks - kv_cache.num_free - len(tails)
    held = sum([now for now, _ in tails.values()])
    with_reserved = sum([later for _, later in tails.values()])
    blocked = waiting is not None and not kv_cache.can_start(waiting.live[0])
    return MemoryUse(
        held=size * full + held,
        reserved=with_reserved - held,
        internal=size * len(tails) - with_reserved,
        external=size * kv_cache.num_free if blocked else 0,
        idle=size * max(0, kv_cache.num_cached - full),
    )


class RunCollector(Observer):
    """Collects what the requests and steps of one engine did.

    Memory and queues are looked at after some steps only, evenly spread, so that it costs little:
    after every one in a short run, and after fewer the longer the run gets.

    Args:
        max_samples: steps that are kept at most.
        start: seconds on the engine's clock at which the run starts.
    """

    def __init__(self, max_samples: int) -> None:
        self.record = RunRecord()
        self.start = 0.0
        self._gaps = TokenGaps(self.record.token_gaps)
        self._active: dict[SequenceGroup, None] = {}
        """Requests that run or are swapped out."""
        self._max_samples = max_samples
        self._stride = 1
        """A step of so many is looked at."""
        self._unweighted = 0.0
        """Busy seconds since memory was last looked at."""
        self._weights = 0.0
        self._sums = dict.fromkeys(("held", "reserved", "internal", "external"), 0.0)
        """Slots times busy seconds."""

    # ------------------------------------------------------------------ requests

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "admitted":
            self._active[group] = None
        elif event in {"preempted", "finished"}:
            self._active.pop(group, None)

    def refused(self, arrival: Arrival, now: float, refusal: Refusal) -> None:
        """The engine did not take on a request."""
        self.record.requests += refused_records(arrival, now, refusal)
        self.record.tell(refusal.is_error, refusal.reason)

    def ended(self, group: SequenceGroup, arrival: Arrival) -> None:
        """A request ended; ``group`` is as it stands after that."""
        record = ended_record(group, arrival, self.start)
        self.record.requests.append(record)
        self.record.tell(record.is_failed, deciding_sequence(group).error)

    # ------------------------------------------------------------------ steps

    def step(
        self,
        engine: Engine,
        outcome: StepOutcome,
        work: Sequence[StepWork],
        began: float,
        ended: float,
    ) -> None:
        """A step was run.

        Args:
            work: of the steps that were collected meanwhile; none: nothing was computed.
            began, ended: seconds from the start of the run.
        """
        self._gaps.step(outcome.advanced, ended)
        totals = self.record.totals
        for each in work:
            totals.count(each)
        totals.busy_seconds += ended - began
        self._unweighted += ended - began
        if work and totals.num_steps % self._stride == 0:
            self._sample(engine, work[-1], began, ended)

    def finish(self, engine: Engine) -> RunRecord:
        """Return the record of the run, which has ended."""
        requests, totals = self.record.requests, self.record.totals
        if requests:
            totals.elapsed = requests[-1].finished - min(each.arrival for each in requests)
        needed = sum(each.needed_tokens for each in requests)
        totals.recomputed_tokens = max(0, totals.scheduled_tokens - needed)
        totals.num_preemptions = engine.metrics.num_preemptions
        totals.num_evictions = engine.metrics.num_evictions
        if isinstance(engine.executor, CountsWork):
            totals.extrapolated_steps = engine.executor.num_extrapolated
        slots = engine.kv_cache.num_blocks * engine.kv_cache.block_size * self._weights
        if slots:
            for use, total in self._sums.items():
                setattr(totals, f"{use}_share", total / slots)
        return self.record

    def _sample(self, engine: Engine, work: StepWork, began: float, ended: float) -> None:
        kv_cache, num_active = engine.kv_cache, len(self._active)
        num_swapped = 0
        if kv_cache.num_host_blocks:
            num_swapped = sum(group.status is Status.SWAPPED for group in self._active)
        num_waiting = engine.metrics.num_unfinished - num_active
        longest = None
        if num_waiting and kv_cache.reserves_runs:
            longest = next((each for each in engine.groups if each not in self._active), None)
        use = memory_use(kv_cache, self._active, longest)
        weight, self._unweighted = self._unweighted, 0.0
        for kind in self._sums:
            self._sums[kind] += weight * getattr(use, kind)
        self._weights += weight
        self.record.steps.append(
            StepSample(
                time=began,
                seconds=ended - began,
                num_running=num_active - num_swapped,
                num_waiting=num_waiting,
                num_swapped=num_swapped,
                prefill_tokens=work.prefill_tokens,
                decode_tokens=work.decode_sequences,
                num_blocks=kv_cache.num_blocks,
                block_size=kv_cache.block_size,
                free_blocks=kv_cache.num_free,
                cached_blocks=use.idle // kv_cache.block_size,
                held_tokens=use.held,
                reserved_tokens=use.reserved,
            )
        )
        if len(self.record.steps) >= self._max_samples:
            del self.record.steps[::2]
            self._stride *= 2


_MOST_WARM = 16_384
"""Slots of the cache that are written before a run, at most."""


def run_workload(
    settings: EngineSettings,
    registry: Registry,
    workload: Workload,
    seed: int,
    *,
    max_samples: int = 2000,
    clock: Clock | None = None,
    advance: Callable[[int], None] = lambda count: None,
    baseline: Baseline | None = None,
) -> RunRecord:
    """Run a workload on the executor that the settings name.

    With ``simulated`` time is virtual: it passes with the steps, and jumps to the next arrival
    where nothing is to be done. With others it is this machine's, and arrivals are waited for; the
    executor is warm, but nothing of its warm-up is counted or observed.
    Requests generate exactly as many tokens as the workload says, unless the model's length or the
    cache ends them earlier: greedily, or sampled where there are several sequences.

    An evictor that asks for the future gets that of a rehearsal, see
    :class:`~paged_plugins.workloads.rehearsal.RehearsedOracle`.

    Args:
        seed: of the workload; what the engine draws goes by it and the setting ``seed``.
        max_samples: steps of which the record keeps a sample, at most.
        clock: of the engine; ``None``: the executor's own, or this machine's.
        advance: called with the number of requests that ended, from time to time.
        baseline: components whose decisions are counted, and compared with those of these options.

    Raises:
        SettingsError: the settings contradict each other or what the machine offers.
        CheckpointError, UnsupportedModel: the model cannot be loaded.
        EngineError: the scheduler plans nothing although requests wait.
    """
    settings = settings.model_copy(update={"seed": derived_seed(seed, "setting", settings.seed)})
    watch, is_real = DecisionWatch(baseline, registry), settings.executor.name != SIMULATED

    def run(
        settings: EngineSettings,
        observer: Observer,
        future: LookupOracle | None = None,
        max_samples: int = 2,
        advance: Callable[[int], None] = lambda count: None,
    ) -> RunRecord:
        collector = RunCollector(max_samples)
        engine = build_engine(
            settings,
            registry if future is None else watch.registry,  # nothing is counted in a rehearsal
            clock=clock,
            observers=[collector, observer],
            future=future,
            after=_warm_engine(settings, registry, clock) if is_real else None,
        )
        try:
            return RecordedLoop(engine, collector, workload.draw(seed), advance).record()
        finally:
            engine.close()

    future = RehearsedOracle(settings, registry, run)
    record = run(settings, Admissions(future), future, max_samples, advance)
    record.asked = watch.counts
    return record


class RecordedLoop(ServingLoop):
    """Serves requests, and records what became of them.

    Args:
        collector: is among the engine's observers.
        drawn: requests that follow no other, by their time ``at``.
        advance: called with the number of requests that ended, after steps in which some did.
    """

    def __init__(
        self,
        engine: Engine,
        collector: RunCollector,
        drawn: Iterable[WorkloadRequest],
        advance: Callable[[int], None] = lambda count: None,
    ) -> None:
        super().__init__(EngineDriver(engine), Arrivals(drawn, engine.capacity.vocab_size))
        executor = engine.executor
        if not isinstance(executor, CountsWork):
            executor = engine.executor = WatchedExecutor(executor)
        self._work: list[StepWork] = []
        """Work of the steps that were collected and not recorded."""
        executor.watch = self._computed
        self._collector = collector
        self._advance = advance

    def record(self) -> RunRecord:
        """Serve all requests; return the record.

        Raises:
            EngineError: the scheduler plans nothing although requests wait, or what the run did
                could not be recorded.
        """
        self._collector.start = self.start
        self.run()
        if self._collector not in self.engine.observers:
            raise EngineError("the record of the run is incomplete; the log names the cause")
        return self._collector.finish(self.engine)

    def add(self, arrival: Arrival) -> None:
        self.engine.add(arrival.asked(self.start))

    def step(self) -> StepOutcome:
        """Run a step; no other thread uses the engine, so that none has to wait for its turn."""
        outcome = self.engine.step()
        if outcome.progressed or not self.engine.has_unfinished:
            return outcome
        return self.driver.step()

    def _computed(self, work: StepWork) -> None:
        self._work.append(work)
        self._collector.record.totals.look(self.engine.kv_cache)

    def refused(self, arrival: Arrival, now: float, refusal: Refusal) -> None:
        self._collector.refused(arrival, now, refusal)

    def stepped(self, outcome: StepOutcome, began: float, ended: float) -> None:
        self._collector.step(self.engine, outcome, self._work, began, ended)
        self._work.clear()
        if outcome.finished:
            self._advance(len(outcome.finished))

    def ended(self, group: SequenceGroup, arrival: Arrival) -> None:
        self._collector.ended(group, arrival)


class ClosedLoop(RecordedLoop, ABC):
    """Serves clients that each ask anew when they are answered; the first requests are drawn."""

    @abstractmethod
    def next_request(self, now: float) -> WorkloadRequest | None:
        """Return what a client asks that is answered ``now``, in seconds since the start; ``None``:
        nothing more."""

    def ended(self, group: SequenceGroup, arrival: Arrival) -> None:
        super().ended(group, arrival)
        if (request := self.next_request(self._clock() - self.start)) is not None:
            self.arrivals.add(request)


def derived_seed(seed: int, part: str, number: int) -> int:
    """Return the seed of one of several parts: ``seed`` itself of number 0, others of 63 bits.

    Args:
        part: sets parts of one kind apart from others.
    """
    return Random(f"{part} {number} {seed}").getrandbits(63) if number else seed


def _warm_engine(settings: EngineSettings, registry: Registry, clock: Clock | None) -> Engine:
    """Return an engine without observers, whose executor is warm unless its time is virtual."""
    settings = settings.model_copy(update={"observers": ()})
    engine = build_engine(settings, registry, clock=clock, future=LookupOracle())
    try:
        if not isinstance(engine.executor, SupportsClock):
            warm_up(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def warm_up(engine: Engine) -> None:
    """Serve short and long requests, so that what is done once is not measured; forget them, also
    in the executor.

    A small cache is written to its end: the memory of one is often mapped when it is first used,
    which takes longer than to compute what is written. The objects that live by then are left out
    of Python's garbage collections: a look at all that PyTorch has made would stop the engine for
    tens of milliseconds, again and again.
    """
    kv_cache, vocab_size = engine.kv_cache, engine.capacity.vocab_size or 1024
    slots = kv_cache.num_blocks * kv_cache.block_size
    most = min(engine.scheduler.length_cap, slots) // 2
    num_long = -(-min(slots, _MOST_WARM) // min(1024, most))
    for number, length in enumerate([min(24, most), *[min(1024, most)] * num_long]):
        prompt = tuple((number + place) % vocab_size for place in range(length))
        request = Request(id=f"warm-up {number}", prompt=prompt, sampling=exact_sampling(1, 4))
        engine.add(request, asks=False)
        while engine.has_unfinished:
            engine.step()
    engine.reset_prefix_cache()
    ended = kv_cache.take_changes().removed
    engine.executor.collect(
        engine.executor.submit(StepInput(number=engine.num_steps, removed=ended))
    )
    gc.unfreeze()
    gc.collect()
    gc.freeze()
