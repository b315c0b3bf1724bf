"""One stream of differences for all viewers of an engine; without one it is not asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec

from paged_core.client.engine_client import ClientState, EngineClient
from paged_core.errors import PagedCoreError

OBSERVER = "live_view"
PERIOD = 0.1
"""Seconds between two questions, at least."""
SHARE = 0.02
"""Share of the engine's time that answers may take: long ones are asked for less often."""
PATIENCE = 3.0
"""Seconds after which an engine that does not answer is said to be silent."""
PING = 15.0
"""Seconds without news after which a comment shows that the connection lives."""

ENDS = {ClientState.DRAINING.value, ClientState.FAILED.value}
"""States after which a stream ends: a server that closes waits for what is open."""

State = tuple[str, str | None]
"""State of the engine, and the reason if it takes no requests, or if there is no view."""


class Update(NamedTuple):
    """News for viewers who have seen everything up to a cursor."""

    cursor: int
    state: State
    event: bytes
    """The server-sent event."""


class LiveFeed:
    """Asks an engine's ``live_view`` for what is new, once for all who have seen the same.

    Who reads slowly has an older cursor, and gets more at a time; so does who comes back with the
    cursor of the last event.

    Args:
        engine: of those behind the client, the one that is asked; ``None``: there is one.
    """

    def __init__(
        self, client: EngineClient, *, engine: int | None = None, period: float = PERIOD
    ) -> None:
        self._client, self._period = client, period
        self._engine = engine
        self._observer = OBSERVER if engine is None else f"{OBSERVER}@{engine}"
        self._num_viewers = 0
        self._asked: dict[tuple[int, State | None], asyncio.Future[Update]] = {}
        """By what viewers have seen: what they wait for."""
        self._poller: asyncio.Task[None] | None = None

    async def events(self, since: int = 0) -> AsyncIterator[bytes]:
        """Yield what is new since a cursor, as server-sent events, until the engine ends."""
        state: State | None = None
        self._num_viewers += 1
        try:
            while state is None or state[0] not in ENDS:
                waiting = asyncio.shield(self._ask_for(since, state))
                try:
                    update = await asyncio.wait_for(waiting, PING)
                except TimeoutError:
                    yield b": ping\n\n"
                    continue
                since, state = update.cursor, update.state
                yield update.event
        finally:
            self._num_viewers -= 1

    def _ask_for(self, since: int, state: State | None) -> asyncio.Future[Update]:
        loop = asyncio.get_running_loop()
        if self._poller is None:
            self._poller = loop.create_task(self._poll())
        return self._asked.setdefault((since, state), loop.create_future())

    async def _poll(self) -> None:
        try:
            while self._num_viewers:
                pause = self._period
                for seen, waiting in list(self._asked.items()):
                    update, took = await self._look(seen[0])
                    pause = max(pause, took / SHARE)
                    if (update.cursor, update.state) != seen:
                        del self._asked[seen]
                        waiting.set_result(update)
                await asyncio.sleep(pause)
        except Exception as error:  # noqa: BLE001 - all who look are told, and can come back
            for waiting in self._asked.values():
                waiting.set_exception(error)
        finally:
            self._poller = None
            self._asked.clear()

    async def _look(self, since: int) -> tuple[Update, float]:
        """Return what is new, and the seconds that this took the engine."""
        view: dict[str, Any] | None = None
        problem: str | None = None
        try:
            view = await asyncio.wait_for(self._client.report(self._observer, since), PATIENCE)
        except TimeoutError:
            problem = "the engine does not answer; it may be in a long step"
        except PagedCoreError as error:
            problem = str(error)
        health = self._client.health()
        state = (health.state.value, health.reason or problem)
        cursor = since if view is None else view["cursor"]
        told: dict[str, Any] = {"state": state[0], "reason": state[1], "view": view}
        if self._engine is not None:
            told |= {"number": self._engine, "engines": health.num_engines}
        data = msgspec.json.encode(told)
        event = b"id: %d\ndata: %b\n\n" % (cursor, data)
        return Update(cursor, state, event), 0.0 if view is None else view["took"]
