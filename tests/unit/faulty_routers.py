"""Routers that are wrong on purpose: the conformance class of the slot must catch each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import randrange
from typing import Any, cast

from paged_core.request import Request
from paged_plugins.routing.router import Load, ReplicaLoad, Router, RouterContext

_SHARED: list[int] = []


class FaultyRouter(Router):
    """Chooses as it is told, knowing how often it was asked and what it has kept."""

    choose: Callable[[FaultyRouter, Request, str, Sequence[ReplicaLoad]], int]

    def __init__(self, options: Any, context: RouterContext, /) -> None:
        self.turn = 0
        self.kept: dict[Any, Any] = {}

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        self.turn += 1
        return self.choose(request, session, replicas)

    def turns(self, replicas: Sequence[ReplicaLoad]) -> int:
        """Take turns, which is right."""
        return self.turn % len(replicas)


class OrderlyRouter(FaultyRouter):
    """Expects requests to end in the order of their arrival."""

    def choose(self, request: Request, session: str, replicas: Sequence[ReplicaLoad]) -> int:
        self.kept[request.id] = request
        return self.turns(replicas)

    def finished(self, request: Request, replica: int, /) -> None:
        if self.kept.pop(next(iter(self.kept))) is not request:
            raise ValueError(request.id)


def _book(router: FaultyRouter, replicas: Sequence[ReplicaLoad]) -> int:
    cast("Load", replicas[router.turns(replicas)]).num_requests += 1
    return router.turns(replicas)


_WRONG: dict[str, Callable[[FaultyRouter, Request, str, Sequence[Any]], Any]] = {
    "OffByOneRouter": lambda own, request, session, replicas: own.turns(replicas) + 1,
    "FloatRouter": lambda own, request, session, replicas: float(own.turns(replicas)),
    "FirstRouter": lambda own, request, session, replicas: 0,
    "SparingRouter": lambda own, request, session, replicas: own.turn % max(1, len(replicas) - 1),
    "MostLoadedRouter": lambda own, request, session, replicas: max(
        range(len(replicas)), key=lambda number: replicas[number].num_requests
    ),
    # sends fifty requests to a replica before it takes the next: equal in all, not at once
    "BurstyRouter": lambda own, request, session, replicas: own.turn // 50 % len(replicas),
    "RollingRouter": lambda own, request, session, replicas: randrange(len(replicas)),
    # all routers of a process take turns together
    "SharedRouter": lambda own, request, session, replicas: (
        _SHARED.append(0) or len(_SHARED) % len(replicas)
    ),
    # adds the request to the load that it is shown
    "BookingRouter": lambda own, request, session, replicas: _book(own, replicas),
    # remembers every session for ever
    "HoardingRouter": lambda own, request, session, replicas: own.kept.setdefault(
        session, own.turns(replicas)
    ),
    # remembers requests, and does not hear that they have ended
    "KeepingRouter": lambda own, request, session, replicas: (
        own.kept.update({request.id: request}) or own.turns(replicas)
    ),
    # needs a list
    "ListRouter": lambda own, request, session, replicas: replicas.copy() and own.turns(replicas),
    # takes every request to have a session
    "SessionlessRouter": lambda own, request, session, replicas: ord(session[0]) % len(replicas),
}
FAULTY: dict[str, type[FaultyRouter]] = {"OrderlyRouter": OrderlyRouter} | {
    name: type(name, (FaultyRouter,), {"choose": choose, "__module__": __name__})
    for name, choose in _WRONG.items()
}
globals().update(FAULTY)  # where a component finds them
