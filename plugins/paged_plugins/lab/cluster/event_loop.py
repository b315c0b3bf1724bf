"""The order of what happens in a cluster: arrivals, and the ends of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf

from paged_core.errors import RequestError
from paged_core.sequence import SequenceGroup
from paged_plugins.lab.cluster.arrivals import Arrival, Arrivals
from paged_plugins.lab.cluster.replica import Replica
from paged_plugins.lab.cluster.watch import Watch
from paged_plugins.lab.router import Router
from paged_plugins.workloads.request import WorkloadRequest


class EventLoop:
    """Serves the arrivals on the replicas, event by event in the order of their time.

    Of events at the same time, steps end first, so that what they free and who follows them is
    known; then requests arrive; then steps begin, which can plan all of these. Ties among replicas
    are broken by their number. Memory grows with the replicas and the requests that have not ended.
    """

    def __init__(
        self, replicas: Sequence[Replica], router: Router, arrivals: Arrivals, watch: Watch
    ) -> None:
        self._replicas = replicas
        self._router = router
        self._arrivals = arrivals
        self._watch = watch
        self._ends: list[tuple[float, int]] = []
        """A heap: when the step under way of each busy replica ends."""
        self._sources: dict[str, WorkloadRequest] = {}
        """By id, what the requests that have not ended were drawn as."""
        self._may_begin: list[int] = []
        """Replicas that had a step end, or a request arrive, at the present time."""

    def run(self, advance: Callable[[int], None]) -> None:
        """Serve all requests.

        Args:
            advance: called with the number of requests that have ended since its last call.
        """
        ends, arrivals = self._ends, self._arrivals
        while True:
            now = min(ends[0][0] if ends else inf, arrivals.time)
            if now == inf:
                return
            num_ended = 0
            while ends and ends[0][0] <= now:
                num_ended += self._end_step(heappop(ends)[1], now)
            while arrivals.time <= now:
                num_ended += self._arrive(arrivals.take())
            self._begin_steps(now)
            self._watch.passed(now, self._replicas)
            if num_ended:
                advance(num_ended)

    def _end_step(self, number: int, now: float) -> int:
        """Apply the end of a step; return how many requests ended with it."""
        finished = self._replicas[number].end_step()
        for group in finished:
            self._finish(group, number)
        self._may_begin.append(number)
        return len(finished)

    def _finish(self, group: SequenceGroup, number: int) -> None:
        source = self._sources.pop(group.id)
        self._router.finished(group.request, number)
        self._watch.ended(group, source, number)
        first = group.sequences[0]
        if source.followers and group.finished_at is not None:
            self._arrivals.follow(source, group.finished_at, first.tokens)

    def _arrive(self, arrival: Arrival) -> int:
        """Route a request; return 1 if it was refused."""
        request = arrival.request
        self._watch.arrived(request)
        number = self._router.route(request, arrival.source.session, self._replicas)
        replica = self._replicas[number]
        try:
            replica.add(request)
        except RequestError as error:
            self._router.finished(request, number)
            self._watch.refused(request, arrival.source, number, str(error))
            return 1
        self._sources[request.id] = arrival.source
        if not replica.is_busy:
            self._may_begin.append(number)
        return 0

    def _begin_steps(self, now: float) -> None:
        for number in sorted(set(self._may_begin)):
            replica = self._replicas[number]
            if replica.has_unfinished:
                heappush(self._ends, (replica.begin_step(now), number))
        self._may_begin.clear()
