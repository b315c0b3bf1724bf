"""The server's own routes: how it is, what it counts, and what an operator may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from paged_core._version import __version__
from paged_core.client.engine_client import ClientState
from paged_core.errors import EngineError, RequestError
from paged_plugins.instruments import exposition
from paged_plugins.server.errors import ApiError
from paged_plugins.server.http.endpoint import Endpoint, json_response
from paged_plugins.server.service import Service

_NOT_ALIVE = {ClientState.RESTARTING, ClientState.FAILED}
_METRICS = "text/plain"
_UNAVAILABLE = {503: "The engine cannot answer now."}
_REPLICA_ERRORS = {
    404: "There is no such engine.",
    409: "It cannot be done as things are; the message says why.",
    503: "The engine was lost, or cannot be started.",
}


class Health(msgspec.Struct, kw_only=True):
    """State of the engine."""

    state: str
    """starting, ready, restarting, draining or failed."""
    reason: str | None = None


class Version(msgspec.Struct):
    """Version of paged_core."""

    version: str


class Load(msgspec.Struct, kw_only=True):
    """Load of the server and of its engine."""

    server_load: int
    """Requests of HTTP that are being answered, without this one."""
    num_unfinished: int
    """Requests that the engine has accepted and that have not ended."""
    num_waiting: int
    """Unfinished requests without a token yet."""
    num_waiting_tokens: int
    """Prompt tokens of the requests that wait."""
    engine_silent_for: float
    """Seconds since the engine last showed that it lives."""


class AbortRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request to abort an answer."""

    request_id: str
    """The id of the answer: cmpl-..., chatcmpl-..."""


class Aborted(msgspec.Struct):
    """Outcome of a request to abort an answer."""

    aborted: bool
    """True if it was being generated."""


class Reset(msgspec.Struct):
    """Outcome of a reset."""

    reset: bool


class OwnRoutes:
    """The routes that are there whatever else is.

    Args:
        document: returns the OpenAPI document.
    """

    def __init__(self, service: Service, document: Callable[[], Any]) -> None:
        self._service, self._document = service, document

    def routes(self) -> Sequence[BaseRoute]:
        """Return them."""
        client = self._service.client
        several = ReplicaRoutes(client).routes() if isinstance(client, ServesOnSeveral) else ()
        return [
            *several,
            Endpoint(
                "GET",
                "/health",
                self.health,
                summary="Whether the engine is alive; it may not take requests yet, or any more.",
                answer=Health,
                errors={503: "It is not alive."},
            ),
            Endpoint(
                "GET",
                "/ready",
                self.ready,
                summary="Whether requests are taken.",
                answer=Health,
                errors={503: "They are not."},
            ),
            Endpoint("GET", "/version", self.version, summary="The version.", answer=Version),
            Endpoint("GET", "/load", self.load, summary="What is being served.", answer=Load),
            Endpoint(
                "GET",
                "/metrics",
                self.metrics,
                summary="What the engine has counted, for Prometheus.",
                answer=_METRICS,
                errors={404: "The observer `metrics` is not in the settings.", **_UNAVAILABLE},
            ),
            Endpoint(
                "POST",
                "/abort",
                self.abort,
                summary="Abort what is being generated.",
                body=AbortRequest,
                answer=Aborted,
            ),
            Endpoint(
                "POST",
                "/reset_prefix_cache",
                self.reset_prefix_cache,
                summary="Forget all cached prefixes.",
                answer=Reset,
                errors={409: "Requests or pins hold some of them.", **_UNAVAILABLE},
            ),
            Endpoint(
                "GET",
                "/openapi.json",
                self.openapi,
                summary="This document.",
                answer=dict[str, Any],
            ),
        ]

    async def health(self, _: Request) -> Response:
        return self._state(self._service.health().state not in _NOT_ALIVE)

    async def ready(self, _: Request) -> Response:
        return self._state(self._service.health().state is ClientState.READY)

    def _state(self, is_well: bool) -> Response:
        health = self._service.health()
        if not is_well:
            why = health.reason or f"the engine is {health.state.value}"
            raise ApiError(503, why, code=f"engine_{health.state.value}")
        return json_response(Health(state=health.state.value, reason=health.reason))

    async def version(self, _: Request) -> Response:
        return json_response(Version(__version__))

    async def load(self, _: Request) -> Response:
        health = self._service.health()
        found = Load(
            server_load=self._service.num_open - 1,
            num_unfinished=health.num_unfinished,
            num_waiting=health.num_waiting,
            num_waiting_tokens=health.num_waiting_tokens,
            engine_silent_for=health.silent_for,
        )
        return json_response(found)

    async def metrics(self, _: Request) -> Response:
        try:
            text: str = await self._service.client.report("metrics")
        except RequestError as error:
            raise ApiError(404, str(error), code="no_metrics") from None
        labels = {"model_name": self._service.model_names[0], "engine": "0"}
        text += exposition([self._service.rejections], labels)
        return Response(text, media_type=_METRICS, headers={"cache-control": "no-store"})

    async def abort(self, _: Request, body: AbortRequest) -> Response:
        aborts = [call for call, name in self._service.aborts.items() if name == body.request_id]
        for abort in aborts:
            abort()
        return json_response(Aborted(bool(aborts)))

    async def reset_prefix_cache(self, _: Request) -> Response:
        if not await self._service.client.reset_prefix_cache():
            raise ApiError(
                409, "requests or pinned prefixes hold cached blocks; nothing was forgotten"
            )
        return json_response(Reset(True))

    async def openapi(self, _: Request) -> Response:
        return json_response(self._document())


# ---------------------------------------------------------------------- several engines


class OneOfSeveral(Protocol):
    """State of one of several engines."""

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
    """State of one of several engines."""

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
    """States of all engines."""

    replicas: list[ReplicaState]


class ReplicaRoutes:
    """``/replicas``, and what an operator may do to each.

    What was begun goes on when the client that asked for it goes.
    """

    def __init__(self, client: ServesOnSeveral) -> None:
        self._client = client
        self._begun: dict[int, asyncio.Task[None]] = {}
        """Drains and starts that run, by the number of the engine."""

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
                errors=_REPLICA_ERRORS,
            ),
            Endpoint(
                "POST",
                "/replicas/{number}/start",
                self.start,
                summary="Start an engine that was drained.",
                answer=ReplicaState,
                errors=_REPLICA_ERRORS,
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
