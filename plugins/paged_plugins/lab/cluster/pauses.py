"""The pauses after which requests follow those that have not ended."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from paged_plugins.workloads.request import WorkloadRequest

_SLACK = 64
"""Entries of requests that have ended, beside as many as have not."""


class Pauses:
    """The shortest think time of the requests that follow one of a set.

    Memory grows with the requests in the set, not with those that were.
    """

    def __init__(self) -> None:
        self._live: set[str] = set()
        self._shortest: list[tuple[float, str]] = []
        """A heap, with some that have been removed."""

    @property
    def shortest(self) -> float:
        """Seconds; infinite if none of the requests is followed by another."""
        heap, live = self._shortest, self._live
        while heap and heap[0][1] not in live:
            heappop(heap)
        return heap[0][0] if heap else inf

    def add(self, request: WorkloadRequest) -> None:
        """Add a request that others follow."""
        self._live.add(request.id)
        heappush(self._shortest, (min(each.at for each in request.followers), request.id))

    def remove(self, request: WorkloadRequest) -> None:
        """Remove a request."""
        self._live.remove(request.id)
        if len(self._shortest) > 2 * len(self._live) + _SLACK:
            self._shortest = [entry for entry in self._shortest if entry[1] in self._live]
            heapify(self._shortest)
