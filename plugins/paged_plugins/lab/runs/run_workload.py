"""Runs a workload on an engine and records what it did, in virtual or in real time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

from paged_core.engine.clock import Clock
from paged_core.engine.driver import EngineDriver
from paged_core.engine.engine import Engine
from paged_core.engine.outcome import StepOutcome
from paged_core.engine.wiring import build_engine
from paged_core.errors import EngineError
from paged_core.interfaces.executor import SupportsClock
from paged_core.interfaces.observer import Observer
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.requests.lookup_oracle import LookupOracle
from paged_core.sequence import SequenceGroup
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.runs.run_collector import RunCollector
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.work_count import CountsWork, WatchedExecutor
from paged_plugins.workloads.rehearsal import Admissions, RehearsedOracle
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.serving import Arrival, Arrivals, Refusal, ServingLoop, exact_sampling
from paged_plugins.workloads.workload import Workload

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
) -> RunRecord:
    """Run a workload on the executor that the settings name.

    With ``simulated`` time is virtual: it passes with the steps, and jumps to the next arrival
    where nothing is to be done. With others it is this machine's, two requests warm up the
    engine, and arrivals are waited for.
    Requests generate exactly as many tokens as the workload says, unless the model's length or the
    cache ends them earlier: greedily, or sampled where there are several sequences.

    An evictor that asks for the future gets that of a rehearsal, see
    :class:`~paged_plugins.workloads.rehearsal.RehearsedOracle`.

    Args:
        seed: of the workload; the engine's own is raised by it.
        max_samples: steps of which the record keeps a sample, at most.
        clock: of the engine; ``None``: the executor's own, or this machine's.
        advance: called with the number of requests that ended, from time to time.

    Raises:
        SettingsError: the settings contradict each other or what the machine offers.
        CheckpointError, UnsupportedModel: the model cannot be loaded.
        EngineError: the scheduler plans nothing although requests wait.
    """
    settings = settings.model_copy(update={"seed": (settings.seed + seed) % 2**63})

    def run(
        settings: EngineSettings,
        watch: Observer,
        future: LookupOracle | None = None,
        max_samples: int = 2,
        advance: Callable[[int], None] = lambda count: None,
    ) -> RunRecord:
        collector = RunCollector(max_samples)
        engine = build_engine(
            settings, registry, clock=clock, observers=[collector, watch], future=future
        )
        try:
            if not isinstance(engine.executor, SupportsClock):
                warm_up(engine)
            return RecordedLoop(engine, collector, workload.draw(seed), advance).record()
        finally:
            engine.close()

    future = RehearsedOracle(settings, registry, run)
    return run(settings, Admissions(future), future, max_samples, advance)


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


def warm_up(engine: Engine) -> None:
    """Serve short and long requests, so that what is done once is not measured; forget them.

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
        engine.add(request)
        while engine.has_unfinished:
            engine.step()
    engine.reset_prefix_cache()
    gc.unfreeze()
    gc.collect()
    gc.freeze()
