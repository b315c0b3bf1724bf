"""The order of what happens in a cluster: arrivals, and the ends of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf

from paged_core.errors import RequestError
from paged_core.sequence import SequenceGroup
from paged_plugins.lab.cluster.replica import Replica
from paged_plugins.lab.cluster.watch import Watch
from paged_plugins.lab.router import Router
from paged_plugins.lab.runs.arrivals import Arrival, Arrivals
from paged_plugins.lab.runs.engine_request import engine_request


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
        self._live: dict[str, Arrival] = {}
        """By id, the requests that have not ended."""
        self._may_begin: list[int] = []
        """Replicas that had a step end, or a request arrive, at the present time."""

    def run(self, advance: Callable[[int], None]) -> None:
        """Serve all requests.

        Args:
            advance: called with the number of requests that have ended since its last call.
        """
        ends, arrivals = self._ends, self._arrivals
        while True:
            now = min(ends[0][0] if ends else inf, _arrival_time(arrivals))
            if now == inf:
                return
            num_ended = 0
            while ends and ends[0][0] <= now:
                num_ended += self._end_step(heappop(ends)[1])
            if _arrival_time(arrivals) <= now:  # of a request that follows one that ended, too
                for arrival in arrivals.due(now):
                    num_ended += self._arrive(arrival)
            self._begin_steps(now)
            self._watch.passed(now, self._replicas)
            if num_ended:
                advance(num_ended)

    def _end_step(self, number: int) -> int:
        """Apply the end of a step; return how many requests ended with it."""
        finished = self._replicas[number].end_step()
        for group in finished:
            self._finish(group, number)
        self._may_begin.append(number)
        return len(finished)

    def _finish(self, group: SequenceGroup, number: int) -> None:
        arrival = self._live.pop(group.id)
        self._router.finished(group.request, number)
        self._watch.ended(group, arrival, number)
        if arrival.request.followers:
            assert group.finished_at is not None
            tokens = tuple(group.sequences[0].tokens)
            self._arrivals.follow(arrival.request, group.finished_at, tokens)

    def _arrive(self, arrival: Arrival) -> int:
        """Route a request; return how many requests have ended because it was refused."""
        request = engine_request(arrival, 0.0)
        self._watch.arrived(arrival)
        number = self._router.route(request, arrival.request.session, self._replicas)
        replica = self._replicas[number]
        try:
            replica.add(request)
        except RequestError as error:
            self._router.finished(request, number)
            return self._watch.refused(arrival, number, str(error))
        self._live[request.id] = arrival
        if not replica.is_busy:
            self._may_begin.append(number)
        return 0

    def _begin_steps(self, now: float) -> None:
        numbers = self._may_begin
        if len(numbers) > 1:
            numbers = sorted(set(numbers))
        for number in numbers:
            replica = self._replicas[number]
            if replica.has_unfinished:
                heappush(self._ends, (replica.begin_step(now), number))
        self._may_begin.clear()


def _arrival_time(arrivals: Arrivals) -> float:
    """Seconds from the start at which the next request arrives; infinite if there is none."""
    at = arrivals.next_at
    return inf if at is None else at
