"""Replicas without engines: what a router sees of a cluster, and requests to route."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_plugins.lab.cluster.load import Load
from paged_plugins.lab.router import Router


@dataclass(frozen=True, slots=True)
class Routed:
    """A request, the conversation that it belongs to, and where it was sent."""

    request: Request
    session: str
    replica: int


class Scene:
    """Routes requests, checks every answer, and ends requests in the order of their arrival.

    Args:
        num_live: requests that are served at once, over all replicas; older ones end.
    """

    def __init__(self, router: Router, num_replicas: int, num_live: int) -> None:
        self.loads = [Load() for _ in range(num_replicas)]
        self.counts = [0] * num_replicas
        """Requests sent to each replica so far."""
        self.most_live = 0
        """Requests that one replica has had at once, at most."""
        self._router = router
        self._num_live = num_live
        self._live: deque[Routed] = deque()

    def route(self, request: Request, session: str) -> int:
        """Route a request and check the answer; end the oldest one if there are too many."""
        before = [replace(load) for load in self.loads]
        chosen = self._router.route(request, session, self.loads)
        assert type(chosen) is int, f"route() returned {chosen!r}, which is no int"
        last = len(self.loads) - 1
        assert 0 <= chosen <= last, f"route() returned {chosen}, and there are replicas 0 to {last}"
        assert self.loads == before, f"route() changed the loads from {before} to {self.loads}"
        load = self.loads[chosen]
        load.num_requests += 1
        load.num_tokens += len(request.prompt)
        self.counts[chosen] += 1
        self.most_live = max(self.most_live, load.num_requests)
        self._live.append(Routed(request, session, chosen))
        if len(self._live) > self._num_live:
            self.end_oldest()
        return chosen

    def route_all(self, requests: Sequence[tuple[Request, str]]) -> list[int]:
        """Route requests in order; return where they were sent."""
        return [self.route(request, session) for request, session in requests]

    def end_oldest(self) -> None:
        """End the request that arrived first of those that have not ended."""
        oldest = self._live.popleft()
        load = self.loads[oldest.replica]
        load.num_requests -= 1
        load.num_tokens -= len(oldest.request.prompt)
        self._router.finished(oldest.request, oldest.replica)

    def end_all(self) -> None:
        """End all requests."""
        while self._live:
            self.end_oldest()


def unrelated_requests() -> Iterator[tuple[Request, str]]:
    """Yield requests of equal length that have no token and no session in common, without end."""
    for number in count():
        yield make_request(number, range(48 * number, 48 * number + 48)), f"session {number}"


def varied_requests() -> list[tuple[Request, str]]:
    """Requests as workloads have them: shared prefixes, conversations, and what is unusual."""
    shared = range(10**6, 10**6 + 64)
    prompts: list[tuple[Sequence[int], str]] = [
        ([1], ""),
        (range(3), ""),
        (range(4), "one"),
        (range(4), "one"),
        ([*shared], ""),
        ([*shared, 1, 2, 3, 4, 5], "two"),
        ([*shared, 1, 2, 3, 4, 5, *range(100, 140)], "two"),
        ([*shared, 6], "x" * 1000),
        (range(5000), "long"),
        ([7] * 64, "\N{SNOWMAN}"),
    ]
    made = [(make_request(number, prompt), name) for number, (prompt, name) in enumerate(prompts)]
    salted = make_request(len(made), shared, cache_salt="salt")
    return [*made, (salted, "two"), *((_renamed(request), name) for request, name in made)]


def make_request(number: int, prompt: Sequence[int], cache_salt: str | None = None) -> Request:
    """Return a request for 8 tokens."""
    return Request(
        id=f"r{number}",
        prompt=tuple(prompt),
        sampling=SamplingParams(max_tokens=8, ignore_eos=True),
        arrival=float(number),
        cache_salt=cache_salt,
    )


def _renamed(request: Request) -> Request:
    return Request(
        id=f"again {request.id}", prompt=request.prompt, sampling=request.sampling, arrival=100.0
    )
