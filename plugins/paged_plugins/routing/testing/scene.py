"""Replicas without engines that a router chooses among, and requests to route."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from types import MappingProxyType

from paged_core.errors import error_text
from paged_core.ids import content_digests
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_plugins.routing.load_book import LoadBook, RoutedRequest
from paged_plugins.routing.router import BlockChange, ReplicaLoad, Router, SupportsBlockEvents
from paged_testing.availability import shortened

BLOCK_SIZE = 4
NUM_BLOCKS = 64
"""Blocks of the prefix cache of a replica, if nothing else is said."""


class WatchedRouter(Router):
    """Checks every answer of a router, and that it changes no load; says which call raised."""

    def __init__(self, inner: Router) -> None:
        self._inner = inner
        self._there: set[int] = set()
        self.events = inner if isinstance(inner, SupportsBlockEvents) else None
        """The router, if it is told of blocks."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self._there.add(replica)
        with _called(f"joined({replica}, {num_blocks})"):
            self._inner.joined(replica, num_blocks)

    def left(self, replica: int, /) -> None:
        self._there.remove(replica)
        with _called(f"left({replica})"):
            self._inner.left(replica)

    def finished(self, request: Request, replica: int, /) -> None:
        has_left = "" if replica in self._there else f" after left({replica})"
        with _called(f"finished(request {request.id!r}, {replica}){has_left}"):
            self._inner.finished(request, replica)

    def blocks_changed(self, replica: int, changes: Iterable[BlockChange], /) -> None:
        """Tell the router, if it is told of blocks."""
        if self.events is not None:
            with _called(f"blocks_changed({replica}, ...)"):
                self.events.blocks_changed(replica, changes)

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        before = [_values(load) for load in replicas.values()]
        with _called(f"route(request {request.id!r}, ...)"):
            chosen = self._inner.route(request, session, MappingProxyType(replicas))
        assert type(chosen) is int, f"route() returned {chosen!r}, which is no int"
        assert chosen in replicas, (
            f"route() returned {chosen}, and the replicas that take requests are {list(replicas)}"
        )
        after = [_values(load) for load in replicas.values()]
        assert after == before, f"route() changed the loads from {before} to {after}"
        return chosen


@contextmanager
def _called(call: str) -> Iterator[None]:
    """Say what a call raised, and where."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - code of a plugin
        raise AssertionError(f"{call} raised {shortened(error_text(error))}") from None


class Scene:
    """Routes requests, checks every answer, and ends requests in the order of their arrival.

    A router that wants to know what prefix caches hold is told of caches that hold the blocks used
    most recently.

    Args:
        num_live: requests that are served at once, over all replicas; older ones end.
        handed: makes of changes of a cache what the router is handed.
        num_blocks: of the prefix cache of a replica.
    """

    def __init__(
        self,
        router: Router,
        num_replicas: int,
        num_live: int,
        handed: Callable[[list[BlockChange]], Iterable[BlockChange]] = iter,
        num_blocks: int = NUM_BLOCKS,
    ) -> None:
        self._handed, self._num_blocks = handed, num_blocks
        self._router = WatchedRouter(router)
        self.is_told = self._router.events is not None
        """True if the router is told of blocks."""
        self.book = LoadBook(self._router)
        self.counts: Counter[int] = Counter()
        """Requests sent to each replica so far."""
        self.most_live = 0
        """Requests that one replica has had at once, at most."""
        self._num_live = num_live
        self._live: deque[RoutedRequest] = deque()
        self._caches: dict[int, OrderedDict[int, None]] = {}
        for number in range(num_replicas):
            self.join(number)

    def join(self, number: int) -> None:
        """A replica joins, and takes requests."""
        self._caches[number] = OrderedDict()
        self.book.joined(number, self._num_blocks)
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
        """End all requests, the last one first."""
        while self._live:
            self._live.pop().ended()

    def change(self, replica: int, *changes: BlockChange) -> None:
        """Change what a cache holds, and tell the router."""
        cache = self._caches[replica]
        for kind, keys in changes:
            if kind == "cleared":
                cache.clear()
            for key in keys:
                if kind == "stored":
                    cache[key] = None
                else:
                    del cache[key]
        self._router.blocks_changed(replica, self._handed([*changes]))

    def settle(self) -> None:
        """Let each cache hold the same blocks as whenever this is called."""
        keys = content_digests(range(self._num_blocks * BLOCK_SIZE), BLOCK_SIZE, "settled")
        for number in self._caches if self.is_told else ():
            self._caches[number] = OrderedDict()
            self.change(number, ("cleared", []), ("stored", keys))

    def _compute(self, request: Request, replica: int) -> None:
        """A replica computes a prompt: the router is told, if it wants to know."""
        if not self.is_told:
            return
        cache, changes = self._caches[replica], list[BlockChange]()
        if not self.counts[replica] % 8:
            cache.clear()
            changes.append(("cleared", []))
        keys = content_digests(request.prompt, BLOCK_SIZE, request.cache_salt)[: self._num_blocks]
        stored = [key for key in keys if key not in cache]
        for key in keys:
            cache[key] = None
            cache.move_to_end(key)
        over = len(cache) - self._num_blocks
        removed = [cache.popitem(last=False)[0] for _ in range(over)]
        changes += [each for each in (("stored", stored), ("removed", removed)) if each[1]]
        self._router.blocks_changed(replica, self._handed(changes))


def _values(load: ReplicaLoad) -> tuple[int, int, int, int]:
    return load.number, load.num_requests, load.num_tokens, load.num_routed


def unrelated_requests(
    session: str = "session {}", first: int = 0
) -> Iterator[tuple[Request, str]]:
    """Yield requests of equal length that have no token and no session in common, without end."""
    for number in count(first):
        prompt = range(48 * number, 48 * number + 48)
        salt = f"salt {number}" if number % 3 == 2 else None
        yield make_request(number, prompt, salt), session.format(number)


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
        priority=number,
        tenant=f"tenant {number}",
        cache_salt=cache_salt,
    )
