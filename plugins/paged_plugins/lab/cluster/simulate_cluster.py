"""Serves a workload on a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from itertools import pairwise, starmap

from paged_core.engine.contexts import make_component
from paged_core.errors import SettingsError
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.cluster.event_loop import EventLoop
from paged_plugins.lab.cluster.fleet import Fleet
from paged_plugins.lab.cluster.record import ClusterRecord, OnRequest, Watch
from paged_plugins.lab.cluster.shard import open_shard
from paged_plugins.lab.measures import ServiceLevel
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord, RunTotals
from paged_plugins.lab.worker import LocalWorker, WorkerProcess
from paged_plugins.machine import num_cores
from paged_plugins.routing.block_events import BlockEventsSettings
from paged_plugins.routing.checked_router import CheckedRouter
from paged_plugins.routing.load_book import LoadBook
from paged_plugins.routing.router import RouterContext
from paged_plugins.workloads.serving import Arrivals
from paged_plugins.workloads.workload import Workload

_MOST = 4
"""Processes that are started unless more are asked for: between two arrivals they wait for the
slowest, and the more there are, the longer."""
_FEW = 16
"""Replicas of a process, below which to start it would not pay."""
DEFAULT_ROUTER = "round_robin"
"""Where the settings name none."""
MAX_REPLICAS = 100_000
"""So many engines fit no machine; what asks for more is a mistake."""


def simulate_cluster(
    settings: EngineSettings,
    registry: Registry,
    workload: Workload,
    seed: int,
    *,
    num_replicas: int,
    slo: ServiceLevel | None = None,
    on_request: OnRequest = lambda request, replica: None,
    max_samples: int = 2000,
    advance: Callable[[int], None] = lambda num_ended: None,
    num_workers: int = 1,
) -> ClusterRecord:
    """Serve a workload on ``num_replicas`` equal engines behind the router that the settings name.

    Equal settings, workloads and seeds give equal records.

    Args:
        settings: of each engine; without a ``router``, requests go to each replica in turn.
        seed: of the workload; that of the engines and of the router is raised by it.
        slo: what a request must meet to count as good; ``None``: nothing.
        on_request: called with each request that ended, in that order.
        max_samples: of the timeline, at most; 2 or more.
        advance: called with the number of requests that have ended since its last call.
        num_workers: processes that share the replicas; 1: this one. The record is the same.

    Raises:
        SettingsError: the engines cannot be simulated.
        EngineError: a scheduler plans nothing although requests wait, the router raises or names no
            replica, or a process has died.
    """
    if not 1 <= num_replicas <= MAX_REPLICAS:
        raise SettingsError(f"{num_replicas} replicas; there may be 1 to {MAX_REPLICAS:,}")
    if not 1 <= num_workers <= num_replicas:
        raise SettingsError(
            f"num_workers is {num_workers}; there may be 1 to {num_replicas:,} for as many replicas"
        )
    if settings.async_scheduling is True:
        raise SettingsError(
            "in a cluster a step is planned when the last one has ended; "
            "leave `async_scheduling` out"
        )
    settings = settings.model_copy(update={"seed": (settings.seed + seed) % 2**63})
    with ExitStack() as stack:
        router = make_router(settings, registry)
        if router.wants_block_events:
            settings = with_block_events(settings)
        fleet = _open_fleet(settings, registry, num_replicas, num_workers, stack)
        capacity = fleet.capacity()
        book = LoadBook(router)
        for number in range(num_replicas):
            book.joined(number, capacity.num_blocks)
            book.offer(number)
        arrivals = Arrivals(workload.draw(seed), capacity.vocab_size)
        watch = Watch(num_replicas, slo or ServiceLevel(), on_request, max_samples)
        EventLoop(fleet, book, router.blocks_changed, arrivals, watch, advance).run()
        return watch.finish(*fleet.totals())


def run_cluster(
    settings: EngineSettings,
    registry: Registry,
    workload: Workload,
    seed: int,
    *,
    num_replicas: int,
) -> RunRecord:
    """Serve a workload as :func:`simulate_cluster` does, in this process; keep all requests."""
    requests: list[RequestRecord] = []
    record = simulate_cluster(
        *(settings, registry, workload, seed),
        num_replicas=num_replicas,
        on_request=lambda request, replica: requests.append(request),
        max_samples=2,
    )
    totals = {each.name: getattr(record, each.name) for each in fields(RunTotals)}
    return RunRecord(
        requests=requests,
        totals=RunTotals(**totals),
        failure=record.failure,
        error=record.error,
        token_gaps=record.token_gaps,
        replicas=record.replicas,
    )


def _open_fleet(
    settings: EngineSettings,
    registry: Registry,
    num_replicas: int,
    num_workers: int,
    stack: ExitStack,
) -> Fleet:
    """Return the replicas, in this process or in others, which end with ``stack``."""
    if num_workers == 1:
        numbers = range(num_replicas)
        shard = stack.enter_context(open_shard(numbers, settings, registry))
        return Fleet([(numbers, LocalWorker(shard))])
    bounds = [worker * num_replicas // num_workers for worker in range(num_workers + 1)]
    return Fleet(
        [
            (numbers, stack.enter_context(shard_process(numbers, settings, registry)))
            for numbers in starmap(range, pairwise(bounds))
        ]
    )


def shard_process(numbers: range, settings: EngineSettings, registry: Registry) -> WorkerProcess:
    """Return a process that serves the replicas of these numbers."""
    name = f"the process of replicas {numbers[0]} to {numbers[-1]}"
    arguments = (open_shard, numbers, settings, registry)
    return WorkerProcess(*arguments, name=name)


def make_router(settings: EngineSettings, registry: Registry) -> CheckedRouter:
    """Return the router that settings name, which no replica has joined."""
    options = router_options(settings, registry)
    context = RouterContext(block_size=settings.block_size, seed=settings.seed)
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


def num_workers(num_replicas: int, asked: int | None) -> int:
    """Return how many processes there are; 1: only this one.

    Args:
        asked: by the user; ``None``: one for each core, but no more than pay.
    """
    if asked is not None:
        return min(asked, num_replicas)
    return max(1, min(num_cores(), _MOST, num_replicas // _FEW))
