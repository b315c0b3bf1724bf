"""Routers that are wrong on purpose: the conformance class of the slot must catch each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import randrange
from typing import Any, cast
from zlib import crc32

from paged_core.ids import content_digests
from paged_core.request import Request
from paged_plugins.routing.load_book import Load
from paged_plugins.routing.router import BlockChange, ReplicaLoad, Router, RouterContext

_SHARED: list[int] = []


class FaultyRouter(Router):
    """Chooses as it is told, knowing how often it was asked and what it has kept."""

    choose: Callable[[FaultyRouter, Request, str, Mapping[int, ReplicaLoad]], int]

    def __init__(self, options: Any, context: RouterContext, /) -> None:
        self.turn = 0
        self.kept: dict[Any, Any] = {}

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        self.turn += 1
        return self.choose(request, session, replicas)

    def turns(self, replicas: Mapping[int, ReplicaLoad]) -> int:
        """Take turns, which is right."""
        return self.nth(self.turn, replicas)

    def nth(self, turn: int, replicas: Mapping[int, ReplicaLoad]) -> int:
        """Return the number of a replica by its place."""
        return list(replicas)[turn % len(replicas)]


class JoinedRouter(FaultyRouter):
    """Knows the replicas that have joined, and not whether they take requests."""

    def __init__(self, options: Any, context: RouterContext, /) -> None:
        super().__init__(options, context)
        self.numbers: list[int] = []

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self.numbers.append(replica)

    def left(self, replica: int, /) -> None:
        self.numbers.remove(replica)

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        return self.numbers[self.turn % len(self.numbers)]


class LoyalRouter(JoinedRouter):
    """Never takes a replica again that has left."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        if replica not in self.kept:
            self.numbers.append(replica)

    def left(self, replica: int, /) -> None:
        self.kept[replica] = None
        self.numbers = [number for number in self.numbers if number != replica]

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        known = [number for number in self.numbers if number in replicas] or list(replicas)
        return known[self.turn % len(known)]


class CountingRouter(JoinedRouter):
    """Gives all requests to one that has joined, until it has had as many as the others."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self.kept[replica] = 0

    def left(self, replica: int, /) -> None:
        del self.kept[replica]

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        routed = {number: load.num_routed for number, load in replicas.items()}
        chosen = min(replicas, key=lambda number: (self.kept[number], routed[number]))
        self.kept[chosen] += 1
        return chosen


class GrievingRouter(CountingRouter):
    """Counts requests, and does not expect them to end after their replica has left."""

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        chosen = self.turns(replicas)
        self.kept[chosen] += 1
        return chosen

    def finished(self, request: Request, replica: int, /) -> None:
        self.kept[replica] -= 1


class ReturningRouter(CountingRouter):
    """Takes what a replica had before it left for what it has since it is back."""

    def finished(self, request: Request, replica: int, /) -> None:
        if replica in self.kept:
            self.kept[replica] -= 1


class RemindedRouter(FaultyRouter):
    """Remembers the blocks of replicas that have left."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self.kept[replica] = [*range(10 * num_blocks)]

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        return self.turns(replicas)


class OrderlyRouter(FaultyRouter):
    """Expects requests to end in the order of their arrival."""

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        self.kept[request.id] = request
        return self.turns(replicas)

    def finished(self, request: Request, replica: int, /) -> None:
        if self.kept.pop(next(iter(self.kept))) is not request:
            raise ValueError(request.id)


class OwingRouter(FaultyRouter):
    """Keeps by its id alone what a request took, which two replicas may have."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self.kept[replica] = 0

    def left(self, replica: int, /) -> None:
        del self.kept[replica]

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        chosen = min(replicas, key=lambda each: (self.kept[each], replicas[each].num_routed))
        self.kept[request.id] = len(request.prompt)
        self.kept[chosen] += self.kept[request.id]
        return chosen

    def finished(self, request: Request, replica: int, /) -> None:
        took = self.kept.pop(request.id, 0)
        if replica in self.kept:
            self.kept[replica] -= took


class RereadingRouter(FaultyRouter):
    """Goes over changes twice, of which it finds none the second time; knows the first key."""

    def blocks_changed(self, replica: int, changes: Iterable[BlockChange], /) -> None:
        if all(kind != "cleared" for kind, _ in changes):
            self.kept.update({key: replica for _, keys in changes for key in keys[:1]})

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        return self.nth(self.turn + len(self.kept), replicas)


class FollowingRouter(FaultyRouter):
    """Goes by the blocks that replicas hold, which is right; else by load."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self.kept[replica] = set()

    def left(self, replica: int, /) -> None:
        del self.kept[replica]

    def keys(self, request: Request) -> list[int]:
        return content_digests(request.prompt, 4, request.cache_salt)

    def changed(self, held: set[int], kind: str, keys: Sequence[int]) -> None:
        if kind == "cleared":
            held.clear()
        (held.update if kind == "stored" else held.difference_update)(keys)

    def blocks_changed(self, replica: int, changes: Iterable[BlockChange], /) -> None:
        for kind, keys in changes:
            self.changed(self.kept[replica], kind, keys)

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        keys = {*self.keys(request)}
        return min(
            replicas,
            key=lambda number: (
                -len(keys & self.kept[number]) if replicas[number].num_requests < 9 else 0,
                replicas[number].num_requests,
                replicas[number].num_routed,
            ),
        )


class UnsaltedRouter(FollowingRouter):
    """Takes prompts of all salts for the same."""

    def keys(self, request: Request) -> list[int]:
        return content_digests(request.prompt, 4)


class PromptRouter(FollowingRouter):
    """Keeps the keys of prompts, whatever their salts."""

    def keys(self, request: Request) -> list[int]:
        return self.kept.setdefault(request.prompt, super().keys(request))


class DeafRouter(FollowingRouter):
    """Does nothing about changes."""

    def changed(self, held: set[int], kind: str, keys: Sequence[int]) -> None: ...


class SortingRouter(FollowingRouter):
    """Takes what is removed in a report for what is not held after it."""

    def blocks_changed(self, replica: int, changes: Iterable[BlockChange], /) -> None:
        kinds = ("cleared", "stored", "removed")
        super().blocks_changed(replica, sorted(changes, key=lambda each: kinds.index(each[0])))


class UnclearedRouter(FollowingRouter):
    """Remembers what caches held before they were cleared."""

    def changed(self, held: set[int], kind: str, keys: Sequence[int]) -> None:
        if kind != "cleared":
            super().changed(held, kind, keys)


class LastHolderRouter(FollowingRouter):
    """Knows of each block the last replica that came to hold it."""

    def changed(self, held: set[int], kind: str, keys: Sequence[int]) -> None:
        for each in self.kept.values() if kind == "stored" else ():
            each.difference_update(keys)
        super().changed(held, kind, keys)


class LingeringRouter(FollowingRouter):
    """Remembers what a replica held before it left."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self.kept.setdefault(replica, set())

    def left(self, replica: int, /) -> None:
        pass


class SubsetRouter(FollowingRouter):
    """Asks of each prefix of the prompt whether it is held."""

    def keys(self, request: Request) -> list[int]:
        keys = super().keys(request)
        held: set[int] = set().union(*self.kept.values())
        known = 0
        while known < len(keys) and held.issuperset(keys[: known + 1]):
            known += 1
        return keys[:known]


class CountedRouter(FollowingRouter):
    """Counts what is held anew for each request."""

    def keys(self, request: Request) -> list[int]:
        self.turn += sum(1 for held in self.kept.values() for _ in held)
        return super().keys(request)


class IdleRouter(FaultyRouter):
    """Forgets what a tenant has sent when none of it is left."""

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        there, sent = self.kept.setdefault(request.tenant, [0, []])
        self.kept[request.tenant] = [there + 1, sent]
        sent.append(request.id)
        return self.turns(replicas)

    def finished(self, request: Request, replica: int, /) -> None:
        self.kept[request.tenant][0] -= 1
        if not self.kept[request.tenant][0]:
            del self.kept[request.tenant]


class PlacingRouter(FollowingRouter):
    """Sends a session to a place of its own, others to where the fewest blocks are held, whichever
    these are, which is right.
    """

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        if session:
            name = session.encode("utf-8", "surrogatepass")
            return max(replicas, key=lambda number: crc32(b"%d:" % number + name))
        return min(
            replicas,
            key=lambda number: (
                len(self.kept[number]) // 16,
                replicas[number].num_requests,
                replicas[number].num_routed,
            ),
        )


RIGHT = (FollowingRouter, PlacingRouter)


class LastingRouter(FaultyRouter):
    """Remembers the last prompts, however long they are."""

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        self.kept[request.prompt] = None
        while len(self.kept) > 32:
            del self.kept[next(iter(self.kept))]
        return self.turns(replicas)


def _book(router: FaultyRouter, replicas: Mapping[int, ReplicaLoad]) -> int:
    cast("Load", replicas[router.turns(replicas)]).num_requests += 1
    return router.turns(replicas)


_WRONG: dict[str, Callable[[FaultyRouter, Request, str, Mapping[int, Any]], Any]] = {
    "OffByOneRouter": lambda own, request, session, replicas: own.turn % len(replicas) + 1,
    "FloatRouter": lambda own, request, session, replicas: float(own.turns(replicas)),
    "FirstRouter": lambda own, request, session, replicas: min(replicas),
    "SparingRouter": lambda own, request, session, replicas: list(replicas)[
        own.turn % max(1, len(replicas) - 1)
    ],
    "MostLoadedRouter": lambda own, request, session, replicas: max(
        replicas, key=lambda number: replicas[number].num_requests
    ),
    # sends fifty requests to a replica before it takes the next: equal in all, not at once
    "BurstyRouter": lambda own, request, session, replicas: own.nth(own.turn // 50, replicas),
    "RollingRouter": lambda own, request, session, replicas: own.nth(randrange(99), replicas),
    # all routers of a process take turns together
    "SharedRouter": lambda own, request, session, replicas: (
        _SHARED.append(0) or own.nth(len(_SHARED), replicas)
    ),
    # adds the request to the load that it is shown
    "BookingRouter": lambda own, request, session, replicas: _book(own, replicas),
    # remembers every session for ever
    "HoardingRouter": lambda own, request, session, replicas: (
        own.kept.setdefault(session, own.turns(replicas))
        if own.kept.get(session) in {None, *replicas}
        else own.turns(replicas)
    ),
    # takes its choice out of the replicas
    "TakingRouter": lambda own, request, session, replicas: (
        cast("dict[int, ReplicaLoad]", replicas).pop(own.turns(replicas)).number
    ),
    # takes every request to have a session
    "SessionlessRouter": lambda own, request, session, replicas: own.nth(ord(session[0]), replicas),
    # sends a session to where its hash says
    "HashingRouter": lambda own, request, session, replicas: (
        own.nth(hash(session), replicas) if session else own.turns(replicas)
    ),
    # takes every request to have a bound
    "BoundedRouter": lambda own, request, session, replicas: own.nth(
        own.turn + 0 * request.sampling.max_tokens, replicas
    ),
    # goes over each prefix of the prompt
    "ClimbingRouter": lambda own, request, session, replicas: (
        all(end >= 0 for end in range(len(request.prompt)) for _ in range(end))
        and own.turns(replicas)
    ),
    # knows prefixes by all of their tokens
    "SlicingRouter": lambda own, request, session, replicas: own.nth(
        len({request.prompt[:end] for end in range(4, len(request.prompt), 4)} & {*own.kept})
        + own.turn,
        replicas,
    ),
    # takes requests without a session for those of one
    "NamelessRouter": lambda own, request, session, replicas: own.nth(
        crc32(session.encode()), replicas
    ),
}
_CLASSES = (
    OrderlyRouter,
    OwingRouter,
    JoinedRouter,
    LoyalRouter,
    CountingRouter,
    GrievingRouter,
    ReturningRouter,
    PromptRouter,
    RemindedRouter,
    LastingRouter,
    RereadingRouter,
    UnsaltedRouter,
    DeafRouter,
    UnclearedRouter,
    LingeringRouter,
    LastHolderRouter,
    SubsetRouter,
    CountedRouter,
    IdleRouter,
    SortingRouter,
)
FAULTY: dict[str, type[FaultyRouter]] = {each.__name__: each for each in _CLASSES} | {
    name: type(name, (FaultyRouter,), {"choose": choose, "__module__": __name__})
    for name, choose in _WRONG.items()
}
globals().update(FAULTY)  # where a component finds them
