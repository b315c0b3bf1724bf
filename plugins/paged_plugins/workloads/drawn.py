"""A workload that is drawn from distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from operator import itemgetter

from paged_plugins.workloads.arrivals import Arrivals
from paged_plugins.workloads.content import ContentIds
from paged_plugins.workloads.family import FamilyDraw
from paged_plugins.workloads.random_streams import Choice, stream
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.request_class import MixedClass
from paged_plugins.workloads.traces.token_count import TokenCount


@dataclass(frozen=True, slots=True)
class DrawnWorkload:
    """Requests of several classes."""

    name: str
    num_requests: int
    """In all; the last family is cut to it."""
    arrivals: Arrivals
    """Of the classes that have no process of their own."""
    classes: Sequence[MixedClass]
    count_tokens: TokenCount
    """For lengths of a trace that has texts."""

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        """Yield the first requests, each with those that follow it."""
        content = ContentIds()
        draws = [
            FamilyDraw(
                each, seed, f"class {number}", content, each.lengths.sampler(self.count_tokens)
            )
            for number, each in enumerate(self.classes)
        ]
        left = self.num_requests
        for number, (time, place) in enumerate(self._arrivals(seed)):
            request, size = draws[place].draw(str(number), time, left)
            yield request
            left -= size
            if not left:
                return

    def _arrivals(self, seed: int) -> Iterator[tuple[float, int]]:
        """Yield the time of each first request, and the number of its class."""
        shares = {
            place: each.weight for place, each in enumerate(self.classes) if each.arrivals is None
        }
        processes = [_of_class(seed, place, each) for place, each in enumerate(self.classes)]
        if shares:
            processes.append(self._shared_arrivals(seed, Choice(shares)))
        return merge(*processes, key=itemgetter(0))

    def _shared_arrivals(self, seed: int, choice: Choice[int]) -> Iterator[tuple[float, int]]:
        classes = stream(seed, "class")
        for time in self.arrivals.times(stream(seed, "arrivals")):
            yield time, choice(classes.random())


def _of_class(seed: int, place: int, mixed: MixedClass) -> Iterator[tuple[float, int]]:
    if mixed.arrivals is not None:
        times = mixed.arrivals.times(stream(seed, f"class {place} arrivals"))
        for time in islice(times, mixed.first):
            yield time, place
