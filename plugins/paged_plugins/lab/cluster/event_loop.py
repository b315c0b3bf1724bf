"""The order of what happens in a cluster: arrivals, and the ends of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from paged_plugins.lab.cluster.fleet import Fleet
from paged_plugins.lab.cluster.pauses import Pauses
from paged_plugins.lab.cluster.record import Watch
from paged_plugins.lab.cluster.shard import EndedRequest
from paged_plugins.routing.load_book import LoadBook, RoutedRequest
from paged_plugins.routing.router import BlockChange
from paged_plugins.workloads.serving import Arrival, Arrivals


class _Routed(NamedTuple):
    arrival: Arrival
    request: RoutedRequest


class EventLoop:
    """Serves the arrivals on the replicas, event by event in the order of their time.

    Of events at the same time, steps end first, so that what they free and who follows them is
    known; then requests arrive; then steps begin, which can plan all of these. Ties among replicas
    are broken by their number. Memory grows with the replicas and the requests that have not ended.

    Replicas go on by themselves until the next request can arrive, each process with its own: a
    conservative parallel simulation of discrete events (Chandy and Misra, "Distributed Simulation:
    A Case Study in Design and Verification of Distributed Programs", IEEE Transactions on Software
    Engineering 5(5), 1979). What happens does not depend on the number of processes.

    Args:
        book: has joined and offers all replicas.
        on_blocks: called with the number of a replica and what changed in its prefix cache.
        advance: called with the number of requests that have ended since its last call.
    """

    def __init__(
        self,
        fleet: Fleet,
        book: LoadBook,
        on_blocks: Callable[[int, Sequence[BlockChange]], None],
        arrivals: Arrivals,
        watch: Watch,
        advance: Callable[[int], None],
    ) -> None:
        self._fleet = fleet
        self._book = book
        self._on_blocks = on_blocks
        self._arrivals = arrivals
        self._watch = watch
        self._advance = advance
        self._live: dict[str, _Routed] = {}
        """By id, the requests that have not ended."""
        self._asked: _Routed | None = None
        """The request that arrived last, while it is not known whether its replica takes it on."""
        self._pauses = Pauses()
        """Before requests that follow those that have not ended."""

    def run(self) -> None:
        """Serve all requests."""
        fleet, now, is_event = self._fleet, 0.0, False
        while (until := self._horizon()) < inf or fleet.next_at < inf:
            fleet.start(until)
            self._settle()
            if is_event:
                self._watch.passed(now, self._book.loads.values())
            now, is_event = until, self._end_steps(until)
            for arrival in self._arrivals.due(now):
                self._settle()
                self._route(arrival)
                is_event = True

    def _horizon(self) -> float:
        """Return a time before which no request arrives.

        One that follows another arrives when a step has ended and its think time has passed.
        """
        arrival = self._arrivals.next_at
        following = self._fleet.next_at + self._pauses.shortest
        return following if arrival is None else min(arrival, following)

    def _end_steps(self, until: float) -> bool:
        """Apply the steps that end up to a time; return whether some end at that time itself.

        With these ends the event is not over: requests may arrive then.
        """
        loads, watch = self._book.loads, self._watch
        now, event = 0.0, None
        for time, repeat, number, num_tokens, ended, changes in self._fleet.ends():
            if (time, repeat) != event:
                if event is not None:
                    watch.passed(now, loads.values())
                now, event = time, (time, repeat)
            loads[number].num_tokens += num_tokens
            if changes:
                self._on_blocks(number, changes)
            if ended:
                self._end(ended, number, time)
        if event is None or now == until:
            return event is not None
        watch.passed(now, loads.values())
        return False

    def _end(self, requests: Sequence[EndedRequest], number: int, now: float) -> None:
        """Requests ended on a replica."""
        for record, error, answer in requests:
            routed = self._live.pop(record.id)
            arrival = routed.arrival
            routed.request.ended()
            self._watch.ended(record, number, error)
            if arrival.request.followers:
                self._pauses.remove(arrival.request)
                self._arrivals.follow(arrival.request, now, (*arrival.prompt, *answer))
        self._advance(len(requests))

    def _route(self, arrival: Arrival) -> None:
        """Send a request to a replica."""
        request = arrival.asked(0.0)
        self._watch.arrived(arrival)
        routed = self._book.route(request, arrival.request.session)
        if arrival.request.followers:
            self._pauses.add(arrival.request)
        self._asked = _Routed(arrival, routed)
        self._fleet.add(routed.replica, arrival)

    def _settle(self) -> None:
        """Learn what became of the request that arrived last."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        refusal = self._fleet.refusal()
        if refusal is None:
            self._live[asked.arrival.request.id] = asked
            return
        if asked.arrival.request.followers:
            self._pauses.remove(asked.arrival.request)
        asked.request.ended()
        self._advance(self._watch.refused(asked.arrival, asked.request.replica, refusal))
