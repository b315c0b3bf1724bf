"""A workload that is drawn from distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paged_plugins.workloads.arrivals import Arrivals
from paged_plugins.workloads.content import ContentIds
from paged_plugins.workloads.family import FamilyDraw
from paged_plugins.workloads.random_streams import Choice, stream
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.request_class import RequestClass


@dataclass(frozen=True, slots=True)
class DrawnWorkload:
    """Requests of several classes that arrive by one process."""

    name: str
    num_requests: int
    """In all; the last family is cut to it."""
    arrivals: Arrivals
    classes: Sequence[RequestClass]
    weights: Sequence[float]
    """How often a first request is of each class."""

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        """Yield the first requests, each with those that follow it."""
        content = ContentIds()
        draws = [
            FamilyDraw(each, seed, f"class {number}", content)
            for number, each in enumerate(self.classes)
        ]
        choice = Choice(dict(zip(draws, self.weights, strict=True)))
        classes = stream(seed, "class")
        left = self.num_requests
        for number, time in enumerate(self.arrivals.times(stream(seed, "arrivals"))):
            request, size = choice(classes.random()).draw(str(number), time, left)
            yield request
            left -= size
            if not left:
                return
