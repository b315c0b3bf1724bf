"""Bounds of a connection: bytes that a client makes us keep, seconds that it makes us wait."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from paged_core.log import get_logger
from paged_plugins.server.errors import ApiError

_MAX_HEADERS = 64 << 10
"""Bytes of the request line and the headers, of trailers, and of what stands between chunks."""
_log = get_logger()


class _Outlet:
    """The transport of a connection, which counts what is written, and is asked before it closes.

    Args:
        close: called instead of closing, with the transport.
    """

    def __init__(
        self, transport: asyncio.Transport, close: Callable[[asyncio.Transport], None]
    ) -> None:
        self._transport, self._close = transport, close
        self.num_written, self.is_ending = 0, False

    def write(self, data: bytes) -> None:
        if not self.is_ending:
            self.num_written += len(data)
            self._transport.write(data)

    def close(self) -> None:
        if not self.is_ending:
            self.is_ending = True
            self._close(self._transport)

    def is_closing(self) -> bool:
        return self.is_ending or self._transport.is_closing()

    def num_left(self) -> int:
        """Return the bytes that the client has not taken, here and in the system."""
        queued = b"\0" * 4
        with suppress(OSError, ValueError):  # there is no such count here, or no socket any more
            socket_ = self._transport.get_extra_info("socket")
            queued = fcntl.ioctl(socket_.fileno(), termios.TIOCOUTQ, queued)
        return self._transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """Bounds what a client makes the server keep, and how long it makes it wait.

    A request has to come in time; what is neither its body nor a part of it has a length at most,
    wherever it stands. An answer must be taken, at whatever pace. A request that asks for another
    protocol is served in this one. Who is refused may read why: the rest is read and dropped.

    Args:
        read_timeout: seconds from the first byte of a request, or the connection, to the last.
        write_timeout: seconds in which a client must take some of what is sent to it.
        most: connections at once, after which new ones are closed.
    """

    def __init__(
        self, *args: Any, read_timeout: float, write_timeout: float, most: int, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._read_timeout, self._write_timeout, self._most = read_timeout, write_timeout, most
        self._deadline: asyncio.TimerHandle | None = None
        self._in_headers = self._is_receiving = True
        self._num_beside = 0
        """Bytes since the request began, or since some of its body came, that are none of it."""
        self._taken, self._taken_at = 0, self.loop.time()
        """Bytes that the client had taken when it last took any, and when that was seen."""
        self._begun: list[RequestResponseCycle] = []
        """Requests of which the answers are not whole."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._outlet = _Outlet(transport, self._end)
        super().connection_made(self._outlet)  # type: ignore[arg-type]
        self._expect()
        if len(self.connections) > self._most:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        for cycle in self._begun:  # uvicorn tells the last one alone
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._outlet.is_ending:
            return
        self._unset_keepalive_if_required()
        self._is_receiving = True
        self._num_beside += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._num_beside > _MAX_HEADERS:
            self._refuse(431, f"the headers have more than {_MAX_HEADERS} bytes; send fewer")
        elif self._is_receiving and self._deadline is None:
            self._expect()

    def _feed(self, data: bytes) -> None:
        """Parse data; a request that asks for another protocol is read again as one that does not.

        The parser takes what follows the headers of such a request for that protocol.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            method, version = self.parser.get_method(), self.parser.get_http_version()
            if method == b"CONNECT":
                return
            first = b"%b %b HTTP/%b" % (method, self.url, version.encode())
            kept = [b"%b: %b" % each for each in self.headers if each[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            self._feed(b"\r\n".join((first, *kept, b"", data[upgrade.args[0] :])))

    def _is_upgrade(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = self._is_receiving = True
        self.scope["state"]["connection"] = self

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # and not in a trailer, which nothing reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_upgrade():
            return
        self._in_headers = False
        super().on_headers_complete()
        self._begun = [each for each in self._begun if not each.response_complete]
        self._begun.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._num_beside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_upgrade():
            return
        self._expect_nothing()
        self._is_receiving, self._num_beside = False, 0
        super().on_message_complete()

    # ------------------------------------------------------------------ for the answer

    @property
    def keeps_up(self) -> bool:
        """Return whether the client reads what is written in time, and is connected."""
        return not self.flow.write_paused and not self.transport.is_closing()

    def write_chunk(self, data: bytes) -> None:
        """Write some of an answer that has begun, and whose length was not told."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def abort(self) -> None:
        """End the connection, whatever is still to be sent."""
        self.transport.abort()

    # ------------------------------------------------------------------ bounds

    def look(self) -> None:
        """End the connection if the client has taken nothing for too long of what is to be sent."""
        now, left = self.loop.time(), self._outlet.num_left()
        taken = self._outlet.num_written - left
        if not left or taken > self._taken:
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at > self._write_timeout:
            _log.warning("slow_reader_cut", seconds=round(now - self._taken_at, 1), left=left)
            self.abort()

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(self._read_timeout, self._too_late)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline, cycle = None, self.cycle
        if self.pipeline or not (cycle is None or cycle.more_body or cycle.response_complete):
            self._expect()  # a request before it is being answered, and it is not read meanwhile
        else:
            self._refuse(408, "the request did not arrive in time; send it again")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is not a whole request, unless another answer is being sent, and close."""
        cycle = self.cycle
        is_sending = cycle is not None and cycle.response_started and not cycle.response_complete
        if not is_sending and not self.transport.is_closing():
            body = msgspec.json.encode(ApiError(status, message).answer)
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json"
                f"\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _end(self, transport: asyncio.Transport) -> None:
        """Close; while the client still sends, drop that first, for as long as a request may take.

        If it were left unread, the system would reset the connection, and the client not read what
        was written last.
        """
        if not self._is_receiving or transport.is_closing():
            transport.close()
            return
        if transport.can_write_eof():
            transport.write_eof()
        self.flow.resume_reading()
        self._expect_nothing()
        self._deadline = self.loop.call_later(self._read_timeout, transport.abort)
