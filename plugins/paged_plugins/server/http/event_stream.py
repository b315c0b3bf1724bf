"""A response of server-sent events: pings where nothing happens, and slow readers are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from starlette.types import Receive, Scope, Send

from paged_core.log import get_logger
from paged_core.text.outputs import OutputDelta
from paged_plugins.server.errors import ApiError, as_api_error
from paged_plugins.server.service import Answer
from paged_plugins.server.settings import HttpSettings

if TYPE_CHECKING:
    from paged_plugins.server.http.protocol import BoundedProtocol

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ],
}

_log = get_logger()


class Events(Protocol):
    """What the readers of one answer see of it."""

    def take(self, place: int, delta: OutputDelta, /) -> bytes:
        """Return the events of what a sequence gained; there may be none.

        Args:
            place: of its prompt.
        """

    async def end(self) -> bytes:
        """Return the last events, where all went well."""


class EventStream:
    """Sends the events of an answer, which it closes when it ends, however it ends.

    It starts with the first event, or with a ping if that takes long: what goes wrong before is an
    answer with a status of its own, and what goes wrong later is an event ``error``, which is the
    last.

    A reader that is slower than the engine gets fewer and longer deltas: none is made before the
    one before it is sent. What a reader keeps up with is written where it is heard of, since to
    wake the task for each token would cost as much as the token does.

    Args:
        failed: makes the last event of what went wrong.
        ping: what is sent where nothing happens.
    """

    def __init__(
        self,
        answer: Answer,
        events: Events,
        options: HttpSettings,
        failed: Callable[[ApiError], bytes] = attrgetter("event"),
        ping: bytes = PING,
    ) -> None:
        self._answer, self._events, self._options = answer, events, options
        self._failed, self._ping_event = failed, ping
        self._has_started = False
        self._sending_since: float | None = None
        self._last_sent = 0.0
        self._ping: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._error: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._send = scope, send
        self._connection: BoundedProtocol | None = scope["state"].get("connection")
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self._watch()
        try:
            with self._answer as answer:
                await self._send_events()
        finally:
            self._answer.listen(_ignore)
            scope["state"]["log"] |= answer.counts
            self._timer.cancel()
            if self._ping is not None:
                self._ping.cancel()

    async def _send_events(self) -> None:
        try:
            async with self._answer.within_deadline():
                self._answer.listen(self._hear)
                while self._error is None and not self._answer.has_ended:
                    await self._news.wait()
                    self._news.clear()
                    if data := self._taken():
                        await self._write(data)
                if self._error is not None:
                    raise self._error
                last = await self._events.end()
        except Exception as error:
            if not self._has_started:
                raise
            found = as_api_error(error, self._scope["state"].get("fields", ()))
            self._scope["state"]["log"]["error"] = found.code
            last = self._failed(found)
        await self._write(last)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _taken(self) -> bytes:
        """Return the events of what the answer has gained."""
        take, pieces = self._events.take, []
        try:
            for place, delta in self._answer.take():
                pieces.append(take(place, delta))
        except Exception as error:  # noqa: BLE001 - it ends the stream, after what came before it
            self._error = error
        return b"".join(pieces)

    def _hear(self) -> None:
        """There is something to take: write it, or wake the task that writes to slow readers."""
        connection = self._connection
        if (
            connection is not None
            and self._has_started
            and self._sending_since is None
            and connection.keeps_up
        ):
            if data := self._taken():
                connection.write_chunk(data)
                self._last_sent = self._loop.time()
            if self._error is None and not self._answer.has_ended:
                return
        self._news.set()

    async def _write(self, data: bytes) -> None:
        self._sending_since = self._loop.time()
        if not self._has_started:
            self._has_started = True
            await self._send(_START)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending_since, self._last_sent = None, self._loop.time()

    def _watch(self) -> None:
        """Look now and then whether a ping is due, or a write takes too long."""
        options, now = self._options, self._loop.time()
        if self._sending_since is not None:
            if now - self._sending_since > options.slow_reader_timeout:
                _log.warning("slow_reader_cut", seconds=round(now - self._sending_since, 1))
                self._abort_connection()
                return
        elif now - self._last_sent >= options.ping_interval:
            self._ping = self._loop.create_task(self._write(self._ping_event))
        every = min(options.ping_interval, options.slow_reader_timeout) / 4
        self._timer = self._loop.call_later(every, self._watch)

    def _abort_connection(self) -> None:
        if self._connection is not None:  # what was written and not read must not be waited for
            self._connection.abort()


def _ignore() -> None:
    """Hear of news that nothing is to be done about."""
