"""Connections: uvicorn's, with bounds on what a client may send, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_HEADERS = 64 << 10
"""Bytes of the request line and the headers."""


class BoundedProtocol(HttpToolsProtocol):
    """Ends connections whose requests do not arrive in time, or have headers without an end.

    Args:
        read_timeout: seconds from the first byte of a request, or the connection, to the last.
    """

    def __init__(self, *args: Any, read_timeout: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._read_timeout = read_timeout
        self._deadline: asyncio.TimerHandle | None = None
        self._in_headers = True
        self._num_header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and self._in_headers:
            self._expect()
        self._num_header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._num_header_bytes > _MAX_HEADERS:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def on_headers_complete(self) -> None:
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._expect_nothing()
        self._in_headers, self._num_header_bytes = True, 0
        super().on_message_complete()

    # ------------------------------------------------------------------ for the answer

    @property
    def keeps_up(self) -> bool:
        """Whether what is written is read in time, and the connection is there."""
        return not self.flow.write_paused and not self.transport.is_closing()

    def write_chunk(self, data: bytes) -> None:
        """Write some of an answer that has begun, and whose length was not told."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def abort(self) -> None:
        """End the connection, whatever is still to be sent."""
        self.transport.abort()

    # ------------------------------------------------------------------ bounds

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(self._read_timeout, self._too_late)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        """Answer what is not a whole request, unless another answer is being sent, and close."""
        cycle = self.cycle
        is_sending = cycle is not None and cycle.response_started and not cycle.response_complete
        if not is_sending and not self.transport.is_closing():
            head = b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head)
        self.transport.close()
