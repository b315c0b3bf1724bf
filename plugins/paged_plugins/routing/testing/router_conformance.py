"""The conformance class of routers, and a scene without engines to route requests in."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import ClassVar

import pytest
from hypothesis import strategies as st

from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_plugins.routing.load_book import Load
from paged_plugins.routing.router import Router, RouterContext
from paged_testing.component import VariesOptions


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
        self._live: deque[tuple[Request, int]] = deque()

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
        self._live.append((request, chosen))
        if len(self._live) > self._num_live:
            self.end_oldest()
        return chosen

    def route_all(self, requests: Sequence[tuple[Request, str]]) -> list[int]:
        """Route requests in order; return where they were sent."""
        return [self.route(request, session) for request, session in requests]

    def end_oldest(self) -> None:
        """End the request that arrived first of those that have not ended."""
        request, replica = self._live.popleft()
        load = self.loads[replica]
        load.num_requests -= 1
        load.num_tokens -= len(request.prompt)
        self._router.finished(request, replica)

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
    again = [(make_request(100 + n, prompt), name) for n, (prompt, name) in enumerate(prompts)]
    return [*made, (salted, "two"), *again]


def make_request(number: int, prompt: Sequence[int], cache_salt: str | None = None) -> Request:
    """Return a request for 8 tokens."""
    return Request(
        id=f"r{number}",
        prompt=tuple(prompt),
        sampling=SamplingParams(max_tokens=8, ignore_eos=True),
        arrival=float(number),
        cache_salt=cache_salt,
    )


_BLOCK_SIZE = 4
_NUM_BLOCKS = 64
_MAX_GROWTH = 16 * 1024
"""Bytes that a router may have allocated more after many requests than after some."""


class RouterConformance(VariesOptions):
    """Subclass it for a router component::

    class TestMyRouter(RouterConformance):
        component = "my_router"
    """

    slot: ClassVar[str] = "router"
    most_over_mean: ClassVar[float] = 2.0
    """Requests that have nothing in common: so many times the mean a replica may get at most, in
    all and at once."""

    def make(self, num_replicas: int = 4, seed: int = 0) -> Router:
        """A fresh component."""
        context = RouterContext(
            num_replicas=num_replicas, block_size=_BLOCK_SIZE, num_blocks=_NUM_BLOCKS, seed=seed
        )
        made = self.build(context)
        assert isinstance(made, Router)
        return made

    # ------------------------------------------------------------------ written cases

    @pytest.mark.parametrize("num_replicas", [1, 2, 3, 8])
    def test_chooses_one_of_the_replicas(self, num_replicas: int) -> None:
        """Whatever the request, and however many requests are being served."""
        for num_live in (0, 3, 100):
            scene = Scene(self.make(num_replicas), num_replicas, num_live)
            scene.route_all(varied_requests())
            scene.end_all()
            scene.route_all(varied_requests())

    @pytest.mark.parametrize("num_live", [16, 64])
    def test_uses_every_replica_alike_for_unrelated_requests(self, num_live: int) -> None:
        scene = Scene(self.make(8), 8, num_live)
        scene.route_all(list(islice(unrelated_requests(), 400)))
        most = self.most_over_mean * 400 / 8
        assert min(scene.counts) > 0, f"a replica gets no request: {scene.counts}"
        assert max(scene.counts) <= most, (
            f"a replica gets {max(scene.counts)} of 400 unrelated requests, and may get {most:.0f}"
        )

    def test_bounds_the_requests_of_a_replica(self) -> None:
        scene = Scene(self.make(8), 8, 160)
        scene.route_all(list(islice(unrelated_requests(), 640)))
        most = self.most_over_mean * 160 / 8 + 1  # the oldest ends after one has arrived
        assert scene.most_live <= most, (
            f"a replica has {scene.most_live} of 160 requests at once, and may have {most:.0f}"
        )

    def test_equal_seeds_choose_alike(self) -> None:
        requests = [*varied_requests(), *islice(unrelated_requests(), 100)]
        random.seed(1)
        first = Scene(self.make(5, seed=7), 5, 10).route_all(requests)
        random.seed(2)
        second = Scene(self.make(5, seed=7), 5, 10).route_all(requests)
        assert first == second, f"{first} the first time, {second} the second: cannot be repeated"

    def test_another_router_changes_nothing(self) -> None:
        """Two clusters in one process share no state."""
        requests = list(islice(unrelated_requests(), 60))
        alone = Scene(self.make(5), 5, 10).route_all(requests)
        scenes = [Scene(self.make(5), 5, 10) for _ in range(2)]
        beside = [[scene.route(*each) for scene in scenes] for each in requests]
        assert [chosen for chosen, _ in beside] == alone, "it is changed by a second router"

    def test_takes_any_sequence_of_replicas(self) -> None:
        scene, twin = Scene(self.make(), 4, 9), self.make()
        for request, session in varied_requests():
            of_tuple = twin.route(request, session, tuple(scene.loads))
            of_list = scene.route(request, session)
            assert of_tuple == of_list, f"of a tuple it chose {of_tuple}, of a list {of_list}"

    def test_takes_the_end_of_requests_in_any_order(self) -> None:
        """Equal prompts, ended last first, and a request that was refused at once."""
        router, scene = self.make(), Scene(self.make(), 4, 1000)
        requests = [make_request(number, range(20)) for number in range(6)]
        sent = [(request, router.route(request, "s", scene.loads)) for request in requests]
        for request, replica in reversed(sent):
            router.finished(request, replica)
        assert router.route(make_request(7, range(20)), "s", scene.loads) in range(4)

    def test_what_it_remembers_is_bounded(self) -> None:
        """By the replicas and their blocks: not by the requests that have ended."""
        scene, requests = Scene(self.make(), 4, 8), unrelated_requests()
        tracemalloc.start()
        try:
            scene.route_all(list(islice(requests, 120)))
            before = self._allocated(scene)
            for _ in range(4):
                scene.route_all(list(islice(requests, 80)))
            growth = self._allocated(scene) - before
        finally:
            tracemalloc.stop()
        assert growth < _MAX_GROWTH, (
            f"320 requests that have ended left {growth} bytes allocated: what a router remembers "
            "is bounded by its replicas, their blocks and the requests that have not ended"
        )

    def test_holds_with_other_options(self) -> None:
        """Small and large numbers, and all choices, as far as its settings class permits them."""
        self.check_with_other_options()

    def check_written(self) -> None:
        self.test_chooses_one_of_the_replicas(3)
        self.test_equal_seeds_choose_alike()
        self.test_takes_the_end_of_requests_in_any_order()

    # ------------------------------------------------------------------ properties

    def test_chooses_one_of_the_replicas_and_can_be_repeated(self) -> None:
        self.check(self.check_repeats, st.integers(1, 9), st.integers(0, 30), _events())

    def check_repeats(
        self, num_replicas: int, num_live: int, events: list[tuple[int, int, str]]
    ) -> None:
        """Check that two equal routers send equal requests to the same replicas."""
        requests = [
            (make_request(number, range(start, start + length)), session)
            for number, (start, length, session) in enumerate(events)
        ]
        scenes = [Scene(self.make(num_replicas, 3), num_replicas, num_live) for _ in range(2)]
        first, second = (scene.route_all(requests) for scene in scenes)
        assert first == second, f"{first} the first time, {second} the second: cannot be repeated"

    def _allocated(self, scene: Scene) -> int:
        """Bytes allocated since tracing began, once all requests have ended."""
        scene.end_all()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


def _events() -> st.SearchStrategy[list[tuple[int, int, str]]]:
    starts, sessions = st.sampled_from([0, 0, 64, 512]), st.sampled_from(["", "a", "b", "c"])
    return st.lists(st.tuples(starts, st.integers(1, 70), sessions), max_size=40)
