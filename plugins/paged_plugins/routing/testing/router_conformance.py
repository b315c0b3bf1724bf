"""The conformance class of routers, and a scene without engines to route requests in."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from paged_core.ids import content_digests
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_plugins.routing.load_book import LoadBook, RoutedRequest
from paged_plugins.routing.router import (
    BlockChange,
    ReplicaLoad,
    Router,
    RouterContext,
    SupportsBlockEvents,
)
from paged_testing.component import Repeats, VariesOptions
from paged_testing.use import instructions

_BLOCK_SIZE = 4
_NUM_BLOCKS = 64
_MAX_GROWTH = 4 * 1024
"""Bytes that a router may have allocated more after many requests than after some."""


class WatchedRouter(Router):
    """Checks every answer of a router, and that it changes no load."""

    def __init__(self, inner: Router) -> None:
        self.inner = inner
        self.joined, self.left = inner.joined, inner.left  # type: ignore[method-assign]
        self.finished = inner.finished  # type: ignore[method-assign]

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        before = [_values(load) for load in replicas.values()]
        chosen = self.inner.route(request, session, MappingProxyType(replicas))
        assert type(chosen) is int, f"route() returned {chosen!r}, which is no int"
        assert chosen in replicas, (
            f"route() returned {chosen}, and the replicas that take requests are {list(replicas)}"
        )
        after = [_values(load) for load in replicas.values()]
        assert after == before, f"route() changed the loads from {before} to {after}"
        return chosen


class Scene:
    """Routes requests, checks every answer, and ends requests in the order of their arrival.

    A router that wants to know what prefix caches hold is told of caches that hold the blocks used
    most recently.

    Args:
        num_live: requests that are served at once, over all replicas; older ones end.
    """

    def __init__(self, router: Router, num_replicas: int, num_live: int) -> None:
        self.book = LoadBook(WatchedRouter(router))
        self.counts: Counter[int] = Counter()
        """Requests sent to each replica so far."""
        self.most_live = 0
        """Requests that one replica has had at once, at most."""
        self._num_live = num_live
        self._live: deque[RoutedRequest] = deque()
        self._events = router if isinstance(router, SupportsBlockEvents) else None
        self._caches: dict[int, OrderedDict[int, None]] = {}
        for number in range(num_replicas):
            self.join(number)

    def join(self, number: int) -> None:
        """A replica joins, and takes requests."""
        self._caches[number] = OrderedDict()
        self.book.joined(number, _NUM_BLOCKS)
        self.book.offer(number)

    def leave(self, number: int) -> None:
        """A replica leaves; its requests end later."""
        del self._caches[number]
        self.book.left(number)

    def move(self, number: int, move: str) -> None:
        """Let a replica ``leave``, ``join``, ``pause`` or ``go on``, where that is possible."""
        if not move:
            return
        is_last = list(self.book.offered) == [number]
        if number not in self.book.loads:
            self.join(number)
        elif move == "leave" and not is_last:
            self.leave(number)
        elif move == "pause" and not is_last:
            self.book.withhold(number)
        elif move == "go on":
            self.book.offer(number)

    def route(self, request: Request, session: str) -> int:
        """Route a request and check the answer; end the oldest one if there are too many."""
        routed = self.book.route(request, session)
        chosen = routed.replica
        self.counts[chosen] += 1
        self.most_live = max(self.most_live, self.book.loads[chosen].num_requests)
        self._compute(request, chosen)
        self._live.append(routed)
        if len(self._live) > self._num_live:
            self.end_oldest()
        return chosen

    def route_all(self, requests: Iterable[tuple[Request, str]]) -> list[int]:
        """Route requests in order; return where they were sent."""
        return [self.route(request, session) for request, session in requests]

    def end_oldest(self) -> None:
        """End the request that arrived first of those that have not ended."""
        self._live.popleft().ended()

    def end_all(self) -> None:
        """End all requests."""
        while self._live:
            self.end_oldest()

    def _compute(self, request: Request, replica: int) -> None:
        """A replica computes a prompt: the router is told, if it wants to know."""
        if self._events is None:
            return
        cache, changes = self._caches[replica], list[BlockChange]()
        if not self.counts[replica] % 8:
            cache.clear()
            changes.append(("cleared", []))
        for key in content_digests(request.prompt, _BLOCK_SIZE, request.cache_salt)[:_NUM_BLOCKS]:
            if key not in cache:
                changes.append(("stored", [key]))
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > _NUM_BLOCKS:
            changes.append(("removed", [cache.popitem(last=False)[0]]))
        self._events.blocks_changed(replica, changes)


def _values(load: ReplicaLoad) -> tuple[int, int, int, int]:
    return load.number, load.num_requests, load.num_tokens, load.num_routed


def unrelated_requests(
    session: str = "session {}", first: int = 0
) -> Iterator[tuple[Request, str]]:
    """Yield requests of equal length that have no token and no session in common, without end."""
    for number in count(first):
        prompt = range(48 * number, 48 * number + 48)
        yield make_request(number, prompt), session.format(number)


def varied_requests(first: int = 0) -> list[tuple[Request, str]]:
    """Requests as workloads have them: shared prefixes, conversations, and what is unusual.

    Args:
        first: the number of the first of them.
    """
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
    numbers = count(first)
    made = [(make_request(next(numbers), prompt), name) for prompt, name in 2 * prompts]
    salted = make_request(next(numbers), shared, cache_salt="salt")
    salted = replace(salted, sampling=SamplingParams(max_tokens=None, n=2))
    return [*made[: len(prompts)], (salted, "two"), *made[len(prompts) :]]


def make_request(number: int, prompt: Sequence[int], cache_salt: str | None = None) -> Request:
    """Return a request for 8 tokens."""
    return Request(
        id=f"r{number}",
        prompt=tuple(prompt),
        sampling=SamplingParams(max_tokens=8, ignore_eos=True),
        arrival=float(number),
        cache_salt=cache_salt,
    )


def routes(
    registry: Registry, slot: str, settings: Mapping[str, Any], *, beside: bool = False
) -> dict[str, list[Any]]:
    """Return where a router sends written requests, also ``beside`` another cluster."""
    members = {"component": settings[slot], "settings": settings, "_registry": registry}
    kit = type("Routes", (RouterConformance,), members)()
    requests = [*varied_requests(), *islice(unrelated_requests(), 100)]
    scene, other = (kit.scene(5, 100, seed=7) for _ in range(2))
    if beside:
        other.leave(0)
        other.route_all(reversed(requests))
    return {"written requests": scene.route_all(requests)}


class RouterConformance(Repeats, VariesOptions):
    """Subclass it for a router component::

    class TestMyRouter(RouterConformance):
        component = "my_router"
    """

    slot: ClassVar[str] = "router"
    decide = staticmethod(routes)
    most_over_mean: ClassVar[float] = 2.0
    """Requests that have nothing in common: so many times the mean a replica may get at most, in
    all and at once."""

    def make(self, seed: int = 0) -> Router:
        """A fresh component, which no replica has joined."""
        made = self.build(RouterContext(block_size=_BLOCK_SIZE, seed=seed))
        assert isinstance(made, Router)
        return made

    def scene(self, num_replicas: int = 4, num_live: int = 10, seed: int = 0) -> Scene:
        """A fresh component that these replicas have joined."""
        return Scene(self.make(seed), num_replicas, num_live)

    # ------------------------------------------------------------------ written cases

    @pytest.mark.parametrize("num_replicas", [1, 2, 3, 8])
    def test_chooses_one_of_the_replicas(self, num_replicas: int) -> None:
        """Whatever the request, and however many requests are being served."""
        for num_live in (0, 3, 100):
            scene = self.scene(num_replicas, num_live)
            scene.route_all(varied_requests())
            scene.end_all()
            scene.route_all(varied_requests())

    def test_chooses_one_that_takes_requests(self) -> None:
        """Replicas leave, come back, and are joined by others; some take no requests for a time."""
        scene = self.scene(5, 20)
        for number in (0, 3):
            scene.book.withhold(number)
        scene.route_all(varied_requests())
        scene.leave(1)
        scene.route_all(varied_requests(100))
        scene.leave(3)
        scene.book.offer(0)
        scene.join(9)
        scene.route_all(varied_requests(200))
        scene.join(1)
        for number in (0, 2, 4, 9):
            scene.book.withhold(number)
        assert set(scene.route_all(varied_requests(300))) == {1}
        scene.leave(1)
        scene.book.offer(9)
        assert set(scene.route_all(varied_requests(400))) == {9}

    def test_takes_the_end_of_requests_after_their_replica_has_left(self) -> None:
        """Also after it is back."""
        scene = self.scene(3, 100)
        scene.route_all(varied_requests())
        scene.leave(0)
        scene.leave(2)
        scene.join(2)
        scene.route_all(varied_requests(100))
        scene.end_all()
        scene.route_all(varied_requests(200))

    @pytest.mark.parametrize("num_live", [0, 16, 64])
    def test_uses_every_replica_alike_for_unrelated_requests(self, num_live: int) -> None:
        """Requests of sessions of their own, and of none."""
        for session in ("session {}", ""):
            scene = self.scene(8, num_live)
            scene.route_all(islice(unrelated_requests(session), 400))
            self.check_shares(scene, range(8), 400)

    @pytest.mark.parametrize("num_live", [0, 64])
    def test_uses_a_replica_that_has_joined_like_the_others(self, num_live: int) -> None:
        """One that is back, and a new one: from then on, and not to make up for what was."""
        scene, requests = self.scene(6, num_live), unrelated_requests()
        scene.route_all(islice(requests, 300))
        scene.leave(2)
        scene.route_all(islice(requests, 100))
        scene.join(2)
        scene.join(7)
        scene.counts.clear()
        scene.route_all(islice(requests, 210))
        self.check_shares(scene, [*range(6), 7], 210, num_idle=num_live)

    def check_shares(
        self, scene: Scene, numbers: Collection[int], num_requests: int, num_idle: int = 0
    ) -> None:
        """Check that each replica got some of these requests, and none too many.

        Args:
            num_idle: of them, those that give a replica which had nothing to do as much as others.
        """
        counts = [scene.counts[number] for number in numbers]
        most = (self.most_over_mean * num_requests + num_idle) / len(counts)
        assert min(counts) > 0, f"a replica gets no request: {counts}"
        assert max(counts) <= most, (
            f"a replica gets {max(counts)} of {num_requests} unrelated requests, and may get "
            f"{most:.0f}"
        )

    def test_requests_of_no_session_have_none_in_common(self) -> None:
        """Where sessions matter, they are not routed as those of one session."""
        each, one, none = (
            self.scene(8, 24, 7).route_all(islice(unrelated_requests(session), 100))
            for session in ("session {}", "one", "")
        )
        assert none != one or one == each, "requests without a session are routed as one session"

    def test_bounds_the_requests_of_a_replica(self) -> None:
        scene = self.scene(8, 160)
        scene.route_all(islice(unrelated_requests(), 640))
        most = self.most_over_mean * 160 / 8 + 1  # the oldest ends after one has arrived
        assert scene.most_live <= most, (
            f"a replica has {scene.most_live} of 160 requests at once, and may have {most:.0f}"
        )

    @pytest.mark.parametrize("what", ["replicas", "tokens of a prompt", "unfinished requests"])
    def test_the_work_grows_in_proportion_to_the(self, what: str) -> None:
        costs = []
        for size in (16, 128):
            replicas, prompt, live = (size if what[:1] == each else 16 for each in "rtu")
            scene = self.scene(replicas, live)
            scene.route_all(islice(unrelated_requests(), 2 * live))
            request = make_request(10**6, range(prompt))
            costs.append(instructions(partial(scene.route, request, "s"), self.package))
        assert costs[1] <= 16 * costs[0] + 400, (
            f"to route a request takes {costs[0]} instructions with 16 {what}, {costs[1]} with 128"
        )

    def test_equal_seeds_choose_alike(self) -> None:
        requests = [*varied_requests(), *islice(unrelated_requests(), 100)]
        random.seed(1)
        first = self.scene(5, seed=7).route_all(requests)
        random.seed(2)
        second = self.scene(5, seed=7).route_all(requests)
        assert first == second, f"{first} the first time, {second} the second: cannot be repeated"

    def test_takes_the_end_of_requests_in_any_order(self) -> None:
        """Equal prompts, ended last first, and a request that was refused at once."""
        router = self.make()
        book = LoadBook(WatchedRouter(router))
        for number in range(4):
            book.joined(number, _NUM_BLOCKS)
            book.offer(number)
        requests = [make_request(number, range(20)) for number in range(6)]
        for routed in reversed([book.route(request, "s") for request in requests]):
            routed.ended()
        book.route(make_request(7, range(20)), "s").ended()

    def test_what_it_remembers_is_bounded(self) -> None:
        """By the replicas and their blocks: not by the requests that have ended."""
        scene, requests = self.scene(4, 8), unrelated_requests()
        self.check_bounded(scene, "320 requests that have ended", requests, lambda turn: None)

    def test_what_has_left_is_forgotten(self) -> None:
        scene, requests = self.scene(2, 8), unrelated_requests()

        def come_and_go(turn: int) -> None:
            for number in range(10 * turn + 2, 10 * turn + 12):
                scene.join(number)
                scene.route_all(islice(requests, 10))
                scene.leave(number)

        self.check_bounded(scene, "40 replicas that have left", requests, come_and_go)

    bytes_free: ClassVar[int] = 256 << 10
    """Contents of the caches change all the time; the two tests above bound their memory."""

    def uses(self) -> Callable[[int], object]:
        scene = self.scene(4, 0)
        return lambda number: scene.route(*next(unrelated_requests(first=number)))

    def check_bounded(
        self,
        scene: Scene,
        what: str,
        requests: Iterator[tuple[Request, str]],
        turn: Callable[[int], None],
    ) -> None:
        """Check that memory does not grow from turn to turn."""
        tracemalloc.start()
        try:
            scene.route_all(islice(requests, 120))
            turn(0)
            before = self._allocated(scene)
            for number in range(1, 5):
                scene.route_all(islice(requests, 80))
                turn(number)
            growth = self._allocated(scene) - before
        finally:
            tracemalloc.stop()
        assert growth < _MAX_GROWTH, (
            f"{what} left {growth} bytes allocated: what a router remembers is bounded by the "
            "replicas that are there, their blocks and the requests that have not ended"
        )

    def test_holds_with_other_options(self) -> None:
        """Small and large numbers, and all choices, as far as its settings class permits them."""
        self.check_with_other_options()

    def check_written(self) -> None:
        self.test_chooses_one_of_the_replicas(3)
        self.test_chooses_one_that_takes_requests()
        self.test_equal_seeds_choose_alike()
        self.test_takes_the_end_of_requests_in_any_order()

    def test_chooses_one_that_takes_requests_and_can_be_repeated(self) -> None:
        drawn = Random(0)
        for _ in range(30):
            self.check_repeats(drawn.randint(1, 9), drawn.randint(0, 30), _events(drawn))

    def check_repeats(self, num_replicas: int, num_live: int, events: list[_Event]) -> None:
        """Check that two equal routers send equal requests to the same replicas."""
        scenes = [self.scene(num_replicas, num_live, 3) for _ in range(2)]
        for number, (start, length, session, replica, move) in enumerate(events):
            request = make_request(number, range(start, start + length))
            first, second = (scene.route(request, session) for scene in scenes)
            assert first == second, (
                f"request {number} went to {first}, and to {second} the second time: "
                "cannot be repeated"
            )
            for scene in scenes:
                scene.move(replica, move)

    def _allocated(self, scene: Scene) -> int:
        """Bytes allocated since tracing began, once all requests have ended."""
        scene.end_all()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


_Event = tuple[int, int, str, int, str]
"""The first token, the length and the session of a request, and what a replica does after it."""


def _events(drawn: Random) -> list[_Event]:
    moves = ("", "", "", "leave", "leave", "pause", "go on")
    return [
        (
            drawn.choice((0, 0, 64, 512)),
            drawn.randint(1, 70),
            drawn.choice(("", "a", "b", "c")),
            drawn.randint(0, 9),
            drawn.choice(moves),
        )
        for _ in range(drawn.randint(0, 40))
    ]
