"""Runs a workload on an engine and records what it did, in virtual or in real time."""

from __future__ import annotations

from collections.abc import Callable

from paged_core.clock import Clock
from paged_core.interfaces.executor import SupportsClock
from paged_core.interfaces.future import Future
from paged_core.interfaces.observer import Observer
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_core.wiring import build_engine
from paged_plugins.lab.runs.run_collector import RunCollector
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.serving_loop import ServingLoop
from paged_plugins.lab.runs.warm_up import warm_up
from paged_plugins.workloads.rehearsal import Admissions, RehearsedFuture
from paged_plugins.workloads.workload import Workload


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
    :class:`~paged_plugins.workloads.rehearsal.RehearsedFuture`.

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
        future: Future | None = None,
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
            return ServingLoop(engine, collector, workload.draw(seed)).run(advance)
        finally:
            engine.close()

    future = RehearsedFuture(settings, registry, run)
    return run(settings, Admissions(future), future, max_samples, advance)
