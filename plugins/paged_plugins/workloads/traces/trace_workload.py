"""A workload that a file has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat

from paged_plugins.workloads.arrivals import Arrivals
from paged_plugins.workloads.random_streams import stream
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.traces.token_count import TokenCount
from paged_plugins.workloads.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class TraceWorkload:
    """The requests of a trace, at its times or at those of another process."""

    name: str
    trace: Trace
    num_requests: int | None
    """At most; the last family is cut to it. ``None``: all."""
    arrivals: Arrivals | None
    """``None``: as the trace has them, whatever the seed."""
    count_tokens: TokenCount

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        """Yield the first requests, each with those that follow it.

        Raises:
            TraceError: a line of the file is broken.
        """
        for request, time in zip(self._cut(), self._times(seed), strict=False):
            yield replace(request, at=request.at * self.trace.scale if time is None else time)

    def _cut(self) -> Iterator[WorkloadRequest]:
        left = self.num_requests
        for request in self.trace.requests(self.count_tokens):
            if left is None:
                yield request
                continue
            if left <= 0:
                return
            size = sum(1 for _ in request.family())
            yield request if size <= left else request.first(left)
            left -= size

    def _times(self, seed: int) -> Iterator[float | None]:
        if self.arrivals is None:
            return repeat(None)
        return self.arrivals.times(stream(seed, "arrivals"))
