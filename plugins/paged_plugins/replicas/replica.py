"""One of several engines: its client, the requests that it was given, and who starts it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from paged_core.client.engine_client import ClientState
from paged_core.client.streams import CopiedStream
from paged_core.errors import EngineError
from paged_core.log import get_logger
from paged_core.processes.failures import named_error
from paged_plugins.engine_process.backoff import Backoff
from paged_plugins.engine_process.client import ProcessClient
from paged_plugins.replicas.replicas import ReplicaHealth
from paged_plugins.routing.load_book import RoutedRequest

DRAINED = "it was drained, and waits to be started"

_log = get_logger()


class Fleet(Protocol):
    """Owner of replicas; it is told of each change."""

    starting: asyncio.Semaphore
    """Bounds how many engines start at once."""

    async def prepare(self, client: ProcessClient, /) -> None:
        """The engine of this client is ready, and about to join."""

    def joined(self, replica: Replica, /) -> None:
        """A replica takes requests."""

    def left(self, replica: Replica, streams: Sequence[CopiedStream], /) -> None:
        """A replica that had joined is gone; others may serve these requests."""

    def ended(self, stream: CopiedStream, /) -> None:
        """A replica holds a request no more."""

    def tell(self) -> None:
        """The state of a replica is another one."""

    async def change(self) -> None:
        """Return when a replica has changed, or a request has ended."""


class Replica:
    """Starts an engine, and another one when it is lost; the owner of its client.

    Args:
        make: returns the client of a new engine.
    """

    def __init__(self, number: int, fleet: Fleet, make: Callable[[Replica], ProcessClient]) -> None:
        self.number = number
        self.client: ProcessClient | None = None
        """Client of its engine; ``None``: there was none so far."""
        self.state, self.reason = ClientState.STARTING, None
        self.failure: Exception | None = None
        """Why its engine could not be started, the last time that this was tried."""
        self.served: dict[CopiedStream, tuple[RoutedRequest, int]] = {}
        """Requests that it serves, and how many tokens of each answer are counted."""
        self._fleet, self._make = fleet, make
        self._num_routed = 0
        self._lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    state: ClientState
    reason: str | None

    def _be(self, state: ClientState, reason: str | None = None) -> None:
        self.state, self.reason = state, reason
        self._fleet.tell()

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start an engine, and whenever it is lost another one."""
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        backoff = Backoff()
        while True:
            self._lost.clear()
            async with self._fleet.starting:
                await self._start()
            if self.failure is None:
                backoff.is_ready()
                await self._lost.wait()
            pause = backoff.pause()
            if pause is None:
                _log.error("replica_given_up", replica=self.number, reason=self.reason)
                self._be(ClientState.FAILED, f"it is given up: {self.reason}")
                return
            await asyncio.sleep(pause)

    async def _start(self) -> None:
        """Start an engine and join; or say why not."""
        client: ProcessClient | None = None
        try:
            client = self.client = self._make(self)
            await client.start()
            await self._fleet.prepare(client)
            self._be(ClientState.READY)
            self._fleet.joined(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            self.failure = error
            why = named_error(error)[1]
            if client is not None:
                with suppress(Exception):  # why it did not start is what is told
                    await client.close()
            _log.error("replica_not_started", replica=self.number, reason=why)
            self._be(ClientState.RESTARTING, why)
        else:
            self.failure = None
            _log.info("replica_joined", replica=self.number, pid=client.pid)

    async def drain(self) -> None:
        """Let what it serves finish, and end its engine; it serves nothing more.

        Raises:
            EngineError: the engine was lost meanwhile, and is ended.
        """
        assert self.client is not None
        self._be(ClientState.DRAINING, "it finishes what it has, and then ends")
        try:
            while self.served:
                await self._fleet.change()
        except asyncio.CancelledError:
            self._be(ClientState.RESTARTING if self._lost.is_set() else ClientState.READY)
            raise
        lost = self._lost.is_set()
        await self.close(ClientState.DRAINING, DRAINED)
        if lost:
            raise EngineError(f"replica {self.number} was lost before all its requests had ended")
        self._fleet.left(self, ())

    async def close(self, state: ClientState, reason: str) -> None:
        """End its engine, and start no other."""
        self._be(state, reason)
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        if self.client is not None:
            await self.client.close()

    # ------------------------------------------------------------------ requests

    @property
    def is_ready(self) -> bool:
        """Return whether its engine takes requests now."""
        return self.health().state is ClientState.READY

    @property
    def is_drained(self) -> bool:
        """Return whether it was drained, and its engine has ended."""
        return self.state is ClientState.DRAINING and self._keeper is None

    def serve(self, stream: CopiedStream, routed: RoutedRequest) -> None:
        """Have its engine serve a request that was routed to it.

        Raises:
            RequestError: it cannot be sent.
        """
        assert self.client is not None
        self.served[stream] = routed, 0
        self._num_routed += 1
        try:
            self.client.adopt(stream)
        except BaseException:
            self.ended(stream)
            raise

    def count_tokens(self) -> None:
        """Count the tokens that answers have gained for its load."""
        for stream, (routed, counted) in self.served.items():
            sequences, prompt = stream.group.sequences, stream.request.prompt
            now = sum(len(each.tokens) - len(prompt) for each in sequences)
            if now != counted:
                routed.progressed(now - counted)
                self.served[stream] = routed, now

    def health(self) -> ReplicaHealth:
        """Return how it is."""
        state, reason = self.state, self.reason
        if state is ClientState.READY and self.client is not None:
            found = self.client.health()  # it may have ended without being missed so far
            state, reason = found.state, found.reason
        return ReplicaHealth(
            number=self.number,
            state=state,
            reason=reason,
            num_unfinished=len(self.served),
            num_routed=self._num_routed,
        )

    # ------------------------------------------------------------------ of its client

    def ended(self, stream: CopiedStream, /) -> None:
        routed, _ = self.served.pop(stream)
        self._fleet.ended(stream)
        try:
            routed.ended()
        except EngineError as error:  # of the router, which the next request is told, too
            _log.error("router_failed", reason=str(error))

    def lost(self, streams: Sequence[CopiedStream], reason: str, /) -> None:
        self._lost.set()
        if self.state is ClientState.READY:
            self._be(ClientState.RESTARTING, reason)
        self._fleet.left(self, streams)
