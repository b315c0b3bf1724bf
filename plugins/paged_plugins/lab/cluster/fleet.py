"""The replicas of a cluster, whichever processes they are in."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from operator import itemgetter
from typing import Any

from paged_core.interfaces.executor import Capacity
from paged_plugins.lab.cluster.shard import Progress, StepEnd
from paged_plugins.lab.runs.run_record import RunTotals
from paged_plugins.lab.worker import Worker
from paged_plugins.workloads.serving import Arrival, Refusal


class Fleet:
    """All replicas, as one shard that serves its parts beside each other.

    Args:
        shards: workers that call a :class:`~paged_plugins.lab.cluster.shard.Shard` each, with the
            numbers of their replicas, in the order of these.
    """

    def __init__(self, shards: Sequence[tuple[range, Worker]]) -> None:
        self._shards = [shard for _, shard in shards]
        self._shard_of = [shard for numbers, shard in shards for _ in numbers]
        self._asked = self._shards[0]
        """To whose replicas the last request was added."""
        self._until = 0.0
        self.next_at = inf
        """No step ends before; infinite if none will."""

    def capacity(self) -> Capacity:
        """Return that of each engine."""
        found: list[Capacity] = self._ask("capacity")
        return found[0]

    def add(self, number: int, arrival: Arrival) -> None:
        """A request arrives at the time that the replicas have come to; see :meth:`refusal`."""
        followers = arrival.request.followers
        if followers:
            arrival = replace(arrival, request=replace(arrival.request, followers=()))
        self._asked = self._shard_of[number]
        self._asked.send("add", number, arrival, bool(followers))
        self.next_at = self._until

    def refusal(self) -> Refusal | None:
        """Return why the request that was added last is not taken on, if it is not.

        It is called once for each, before another is added, and before :meth:`ends`.
        """
        refusal: Refusal | None = self._asked.receive()
        return refusal

    def start(self, until: float) -> None:
        """Serve all that happens before a time, and end the steps that end at it."""
        self._until = until
        for shard in self._shards:
            shard.send("run", until)

    def ends(self) -> Iterator[StepEnd]:
        """Yield the steps that end, in their order. :attr:`next_at` is known after that."""
        running, waiting = self._shards, list[StepEnd]()
        self.next_at = inf
        while running:
            behind, known_until = list[Worker](), inf
            for shard in running:
                progress: Progress = shard.receive()
                waiting += progress.ends
                if progress.is_complete:
                    self.next_at = min(self.next_at, progress.next_at)
                else:
                    known_until = min(known_until, progress.next_at)
                    behind.append(shard)
            for shard in behind:
                shard.send("run", self._until)
            waiting.sort()
            num_known = bisect_left(waiting, known_until, key=itemgetter(0))
            yield from waiting[:num_known]
            del waiting[:num_known]
            running = behind

    def totals(self) -> tuple[list[RunTotals], Counter[int]]:
        """The run has ended: return the totals of each replica, and the times between tokens."""
        totals, token_gaps = list[RunTotals](), Counter[int]()
        found: list[tuple[Sequence[RunTotals], Mapping[int, int]]] = self._ask("totals")
        for of_replicas, gaps in found:
            totals += of_replicas
            token_gaps.update(gaps)
        return totals, token_gaps

    def _ask(self, method: str) -> list[Any]:
        for shard in self._shards:
            shard.send(method)
        return [shard.receive() for shard in self._shards]
