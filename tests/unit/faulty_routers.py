"""Routers that are wrong on purpose: the conformance class of the slot must catch each."""

from __future__ import annotations

from collections.abc import Sequence
from random import randrange
from typing import Any, ClassVar, cast

from paged_core.request import Request
from paged_plugins.lab.router import ReplicaLoad, Router, RouterContext
from paged_plugins.lab.testing.router_conformance import Load


class _Faulty(Router):
    def __init__(self, options: Any, context: RouterContext, /) -> None:
        self.turn = 0
        self.parts = context

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        self.turn += 1
        return self.turn % len(replicas)


class OffByOneRouter(_Faulty):
    """Counts replicas from 1."""

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return super().route(request, session, replicas) + 1


class FloatRouter(_Faulty):
    """Returns a number that is no index."""

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return cast("int", float(super().route(request, session, replicas)))


class FirstRouter(_Faulty):
    """Sends everything to one replica."""

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return 0


class SparingRouter(_Faulty):
    """Never uses the last of several replicas."""

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        self.turn += 1
        return self.turn % max(1, len(replicas) - 1)


class MostLoadedRouter(_Faulty):
    """Takes the wrong end of the order."""

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return max(range(len(replicas)), key=lambda number: replicas[number].num_requests)


class BurstyRouter(_Faulty):
    """Sends fifty requests to a replica before it takes the next: equal in all, not at once."""

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        self.turn += 1
        return self.turn // 50 % len(replicas)


class RollingRouter(_Faulty):
    """Rolls dice that have no seed of their own."""

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return randrange(len(replicas))


class SharedRouter(_Faulty):
    """All routers of a process take turns together."""

    turns: ClassVar[list[int]] = []

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        self.turns.append(0)
        return len(self.turns) % len(replicas)


class BookingRouter(_Faulty):
    """Adds the request to the load that it is shown."""

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        chosen = super().route(request, session, replicas)
        cast("Load", replicas[chosen]).num_requests += 1
        return chosen


class HoardingRouter(_Faulty):
    """Remembers every session for ever."""

    def __init__(self, options: Any, context: RouterContext, /) -> None:
        super().__init__(options, context)
        self.sessions: dict[str, int] = {}

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        if session not in self.sessions:
            self.sessions[session] = super().route(request, session, replicas)
        return self.sessions[session]


class KeepingRouter(_Faulty):
    """Remembers the requests that are being served, and does not hear that they have ended."""

    def __init__(self, options: Any, context: RouterContext, /) -> None:
        super().__init__(options, context)
        self.live: dict[str, Request] = {}

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        self.live[request.id] = request
        return super().route(request, session, replicas)


class OrderlyRouter(_Faulty):
    """Expects requests to end in the order of their arrival."""

    def __init__(self, options: Any, context: RouterContext, /) -> None:
        super().__init__(options, context)
        self.live: list[str] = []

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        self.live.append(request.id)
        return super().route(request, session, replicas)

    def finished(self, request: Request, replica: int, /) -> None:
        if self.live.pop(0) != request.id:
            raise ValueError(request.id)


class ListRouter(_Faulty):
    """Needs a list."""

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return cast("list[ReplicaLoad]", replicas).copy() and super().route(
            request, session, replicas
        )


class SessionlessRouter(_Faulty):
    """Takes every request to have a session."""

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return ord(session[0]) % len(replicas)


FAULTY = [
    kind
    for kind in list(vars().values())
    if isinstance(kind, type) and issubclass(kind, _Faulty) and kind is not _Faulty
]
