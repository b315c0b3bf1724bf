"""The routes of a client of several engines: how each is, and draining and starting one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from paged_core.client.engine_client import ClientState
from paged_core.errors import EngineError, RequestError
from paged_plugins.server.errors import ApiError
from paged_plugins.server.http.endpoint import Endpoint, json_response

_ERRORS = {
    404: "There is no such engine.",
    409: "It cannot be done as things are; the message says why.",
    503: "The engine was lost, or cannot be started.",
}


class OneOfSeveral(Protocol):
    """How one of several engines is."""

    number: int
    state: ClientState
    reason: str | None
    num_unfinished: int
    num_routed: int


@runtime_checkable
class ServesOnSeveral(Protocol):
    """A client whose engines can be drained one by one, whatever plugin it is from."""

    def replicas(self) -> Sequence[OneOfSeveral]:
        """Return how each engine is, in the order of their numbers from 0."""

    async def drain_replica(self, number: int, /) -> None:
        """Give an engine no more requests, and end it when it has none."""

    async def start_replica(self, number: int, /) -> None:
        """Start an engine that was drained."""


class ReplicaState(msgspec.Struct, kw_only=True):
    """How one of several engines is."""

    number: int
    state: str
    """starting, ready, restarting, draining (drained, too) or failed."""
    reason: str | None
    """Why it takes no requests."""
    num_unfinished: int
    """Requests that it serves."""
    num_routed: int
    """Requests that it was given so far."""


class ReplicaStates(msgspec.Struct):
    """How all are."""

    replicas: list[ReplicaState]


class ReplicaRoutes:
    """``/replicas``, and what an operator may do to each.

    What was begun goes on when the client that asked for it goes.
    """

    def __init__(self, client: ServesOnSeveral) -> None:
        self._client = client
        self._begun: dict[int, asyncio.Task[None]] = {}
        """What is being done to an engine, by its number."""

    def routes(self) -> Sequence[BaseRoute]:
        """Return them."""
        return [
            Endpoint(
                "GET",
                "/replicas",
                self.states,
                summary="How each of several engines is.",
                answer=ReplicaStates,
            ),
            Endpoint(
                "POST",
                "/replicas/{number}/drain",
                self.drain,
                summary="Give an engine no more requests, and end it when it has none.",
                answer=ReplicaState,
                errors=_ERRORS,
            ),
            Endpoint(
                "POST",
                "/replicas/{number}/start",
                self.start,
                summary="Start an engine that was drained.",
                answer=ReplicaState,
                errors=_ERRORS,
            ),
        ]

    async def states(self, _: Request) -> Response:
        return json_response(ReplicaStates([_state(each) for each in self._client.replicas()]))

    async def drain(self, request: Request) -> Response:
        return await self._do(request, self._client.drain_replica)

    async def start(self, request: Request) -> Response:
        return await self._do(request, self._client.start_replica)

    async def _do(
        self, request: Request, do: Callable[[int], Coroutine[Any, Any, None]]
    ) -> Response:
        name = request.path_params["number"]
        numbers = {str(each.number): each.number for each in self._client.replicas()}
        if name not in numbers:
            there = f"there are 0 to {len(numbers) - 1}"
            raise ApiError(404, f"no engine has the number {name!r:.40}; {there}")
        number = numbers[name]
        if number in self._begun:
            raise ApiError(409, f"engine {number} is being drained or started already")
        task = self._begun[number] = asyncio.create_task(do(number))
        task.add_done_callback(lambda task: self._ended(number, task))
        try:
            await asyncio.shield(task)
        except RequestError as error:
            raise ApiError(409, str(error)) from None
        except EngineError as error:
            raise ApiError(503, f"engine {number}: {error}", code="engine_lost") from None
        return json_response(_state(self._client.replicas()[number]))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._begun[number]
        if not task.cancelled():
            task.exception()  # it has been looked at, even if the client is gone


def _state(health: OneOfSeveral) -> ReplicaState:
    return ReplicaState(
        number=health.number,
        state=health.state.value,
        reason=health.reason,
        num_unfinished=health.num_unfinished,
        num_routed=health.num_routed,
    )
