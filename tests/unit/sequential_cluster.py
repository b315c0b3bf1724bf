"""A cluster served event by event in one loop, as plainly as can be, to compare others to."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

from paged_core.engine.contexts import make_component
from paged_core.errors import RequestError
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.sequence import SequenceGroup
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.cluster.record import ClusterRecord, Watch
from paged_plugins.lab.cluster.shard import build_replica
from paged_plugins.lab.cluster.simulate_cluster import (
    make_router,
    router_options,
    with_block_events,
)
from paged_plugins.lab.measures import ServiceLevel
from paged_plugins.lab.runs.run_record import RequestRecord, ended_record
from paged_plugins.routing.load_book import Load
from paged_plugins.routing.router import Router, RouterContext, SupportsBlockEvents
from paged_plugins.workloads.serving import Arrival, Arrivals, Refusal
from paged_plugins.workloads.workload import Workload


class SequentialCluster:
    """Replicas whose steps end, begin and meet arrivals in the order of time."""

    def __init__(
        self,
        settings: EngineSettings,
        registry: Registry,
        workload: Workload,
        seed: int,
        num_replicas: int,
    ) -> None:
        settings = settings.model_copy(update={"seed": settings.seed + seed})
        if make_router(settings, registry).wants_block_events:
            settings = with_block_events(settings)
        self.ended: list[tuple[RequestRecord, int]] = []
        self._gaps: dict[int, int] = {}
        self._loads = {number: Load(number) for number in range(num_replicas)}
        self._replicas = [
            build_replica(number, settings, registry, self._gaps) for number in range(num_replicas)
        ]
        capacity = self._replicas[0].engine.capacity
        context = RouterContext(block_size=settings.block_size, seed=settings.seed)
        self._router: Router = make_component(
            registry, "router", router_options(settings, registry), context
        )
        for number in range(num_replicas):
            self._router.joined(number, capacity.num_blocks)
        self._arrivals = Arrivals(workload.draw(seed), capacity.vocab_size)
        self._watch = Watch(
            num_replicas, ServiceLevel(), lambda *ended: self.ended.append(ended), 2000
        )
        self._ends: list[tuple[float, int]] = []
        self._live: dict[str, tuple[Arrival, Request]] = {}

    def run(self) -> ClusterRecord:
        """Serve all requests."""
        while (now := min(self._ends[0][0] if self._ends else inf, self._next_arrival())) < inf:
            touched = {*self._end_steps(now), *map(self._arrive, self._arrivals.due(now))}
            for number in sorted(touched):
                replica = self._replicas[number]
                if replica.engine.has_unfinished and not replica.is_busy:
                    heappush(self._ends, (replica.begin_step(now), number))
            self._watch.passed(now, self._loads.values())
        totals = [replica.totals() for replica in self._replicas]
        return self._watch.finish(totals, self._gaps)

    def _next_arrival(self) -> float:
        at = self._arrivals.next_at
        return inf if at is None else at

    def _end_steps(self, now: float) -> Iterator[int]:
        while self._ends and self._ends[0][0] <= now:
            number = heappop(self._ends)[1]
            num_tokens, groups = self._replicas[number].end_step()
            self._loads[number].num_tokens += num_tokens
            self._loads[number].num_requests -= len(groups)
            changes = self._replicas[number].block_changes()
            if isinstance(self._router, SupportsBlockEvents):
                self._router.blocks_changed(number, changes)
            for group in groups:
                self._finish(group, number, now)
            yield number

    def _finish(self, group: SequenceGroup, number: int, now: float) -> None:
        arrival, request = self._live.pop(group.id)
        self._loads[number].num_tokens -= len(request.prompt)
        self._router.finished(request, number)
        first = group.sequences[0]
        self._watch.ended(ended_record(group, arrival, 0.0), number, first.error)
        self._arrivals.follow(arrival.request, now, tuple(first.tokens))

    def _arrive(self, arrival: Arrival) -> int:
        request = arrival.asked(0.0)
        self._watch.arrived(arrival)
        number = self._router.route(request, arrival.request.session, self._loads)
        self._loads[number].num_routed += 1
        try:
            self._replicas[number].engine.add(request)
        except RequestError as error:
            self._router.finished(request, number)
            self._watch.refused(arrival, number, Refusal.of(error))
            return number
        self._loads[number].num_requests += 1
        self._loads[number].num_tokens += len(request.prompt)
        self._live[request.id] = arrival, request
        return number
