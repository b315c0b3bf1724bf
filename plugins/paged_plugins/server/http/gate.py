"""Bounds and checks before every route: connections, hosts, origins, keys, sizes, ids, errors."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import hmac
import ipaddress
import logging
import re
import socket
import sys
import termios
import time
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any
from uuid import uuid4

import httptools
import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from paged_core.log import get_logger
from paged_plugins.server.errors import ApiError, ErrorAnswer, ErrorForm, as_api_error
from paged_plugins.server.http.endpoint import Endpoint
from paged_plugins.server.service import Service

PUBLIC = frozenset({"/health", "/ready"})
"""Paths that need no key."""
_PROBES = PUBLIC | {"/metrics"}
"""Paths that machines ask again and again: no line of the log unless something is wrong."""
_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_ALLOWED_HEADERS = (
    "authorization, content-type, x-api-key, x-request-id, x-session-id, anthropic-version, "
    "anthropic-beta, anthropic-dangerous-direct-browser-access"
)
_MAX_HEADERS = 64 << 10
"""Bytes of the request line and the headers, of trailers, and of what stands between chunks."""
_SHORT_BODY = 64 << 10
"""Bytes that may come after a refusal on a connection that is kept."""
_CLOSED = 499
"""The status in the log of a request whose client has gone."""

_log = get_logger()
_access_log = get_logger(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
"""Log of requests, there whatever `--log-level` is: a setting turns it off."""


class Keys:
    """The keys that clients may have; only their digests are kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def fit(self, given: bytes | None) -> bool:
        """Return whether a key is one of them, in a time that tells not which, or how nearly."""
        digest, found = _digest(given or b""), False
        for each in self._digests:
            found |= hmac.compare_digest(each, digest)
        return found and given is not None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Hosts:
    """The names that a request's Host may have.

    An address is one in any case: a page of another site can make a browser ask an address, but
    only by its own name (DNS rebinding).

    Args:
        named: patterns: ``api.example.com``, ``*.example.com``, ``*``.
    """

    def __init__(self, named: Iterable[str]) -> None:
        own = {"localhost", socket.gethostname(), socket.getfqdn()}
        self._patterns = [name.lower() for name in (*own, *named) if name]

    def fit(self, host: str) -> bool:
        """Return whether a request with this Host is for this server."""
        name = re.sub(r":\d+$", "", host).lower().removeprefix("[").removesuffix("]")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return any(fnmatchcase(name, pattern) for pattern in self._patterns)
        return True


class Gate:
    """The application that uvicorn calls: checks each request, and calls a router.

    Args:
        router: raises what is to be answered with an error, in the form of the path.
        origins: of pages of other sites that may ask; ``*``: all.
    """

    def __init__(
        self, router: Router, service: Service, keys: Keys, hosts: Hosts, origins: Collection[str]
    ) -> None:
        self._router, self._service = router, service
        self._endpoints = {each.path: each for each in router.routes if isinstance(each, Endpoint)}
        self._keys, self._hosts, self._origins = keys, hosts, frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["path"])
        form = ErrorAnswer if endpoint is None else endpoint.error
        exchange = _Exchange(scope, receive, send, self._service.options.max_body_size, form)
        self._service.num_open += 1
        try:
            await self._answer(exchange, endpoint)
        except asyncio.CancelledError:
            if not exchange.is_over:
                raise
        except Exception as error:  # noqa: BLE001 - every one is answered
            await exchange.fail(error)
        finally:
            self._service.num_open -= 1
            exchange.end()
            if self._service.options.access_log:
                record = exchange.record()
                if scope["path"] not in _PROBES or record["status"] not in (200, 503):
                    _access_log.info("answered", **record)

    async def _answer(self, exchange: _Exchange, endpoint: Endpoint | None) -> None:
        scope, headers = exchange.scope, exchange.headers
        if not self._hosts.fit(headers.get(b"host", b"").decode("latin-1")):
            raise ApiError(
                421,
                "this host is not served here; name it in the setting server.allowed_hosts",
                code="host_not_allowed",
            )
        if self._is_foreign(headers):
            self._allow_origin(exchange)
            if scope["method"] == "OPTIONS":
                await exchange.preflight()
                return
        if self._keys and scope["path"] not in PUBLIC and not self._keys.fit(_key(headers)):
            scheme = "Basic" if b"text/html" in headers.get(b"accept", b"") else "Bearer"
            raise ApiError(
                401,
                "a key is needed, as `Authorization: Bearer KEY`, and this one is missing or wrong",
                code="invalid_api_key",
                headers={"www-authenticate": f'{scheme} realm="paged_core"'},
            )
        exchange.check_length()
        if endpoint is not None and endpoint.body and scope["method"] == endpoint.method:
            scope["state"]["body"] = await exchange.read()
        scope["app"] = self  # the router then raises what is not found
        await self._router(scope, exchange.receive, exchange.send)

    def _is_foreign(self, headers: dict[bytes, bytes]) -> bool:
        """Return whether a page of another site asks."""
        origin = headers.get(b"origin")
        return origin is not None and origin.rpartition(b"//")[2] != headers.get(b"host")

    def _allow_origin(self, exchange: _Exchange) -> None:
        origin = exchange.headers[b"origin"].decode("latin-1")
        if origin not in self._origins and "*" not in self._origins:
            raise ApiError(
                403,
                "pages of other sites may not ask; name them in the setting server.allowed_origins",
                code="origin_not_allowed",
            )
        exchange.extra_headers += [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", b"x-request-id, retry-after"),
            (b"vary", b"origin"),
        ]


def _key(headers: dict[bytes, bytes]) -> bytes | None:
    """Return the key that a request has, as a client or as a browser sends it."""
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() == b"basic":
        try:
            return b64decode(value, validate=True).partition(b":")[2]
        except ValueError:
            return None
    return headers.get(b"x-api-key")


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, max_body_size: int, form: ErrorForm
    ) -> None:
        self.scope = scope
        self.headers = dict(scope["headers"])
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self.client_has_gone = self.is_over = False
        given = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.id = given if _ID.fullmatch(given) else uuid4().hex
        self._receive, self._send = receive, send
        self._max_body_size, self._num_received, self._form = max_body_size, 0, form
        self._began = time.monotonic()
        self._status: int | None = None
        self._has_ended = False
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        scope.setdefault("state", {})["log"] = {}

    def check_length(self) -> None:
        """Refuse a body that is too large before any of it is read."""
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_body_size:
            raise self._too_large()

    def _has_long_body(self) -> bool:
        length = self.headers.get(b"content-length", b"0")
        is_long = length.isdigit() and int(length) > _SHORT_BODY
        return is_long or b"transfer-encoding" in self.headers

    async def receive(self) -> Message:
        """Receive the body; once it is there, notice if the client goes."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._num_received += len(message.get("body", b""))
            if self._num_received > self._max_body_size:
                raise self._too_large()
            if not message.get("more_body", False) and self._watcher is None:
                self._watcher = asyncio.create_task(self._watch())
        return message

    async def read(self) -> bytes:
        """Receive the whole body.

        Raises:
            ClientDisconnect: the client has gone.
        """
        parts: list[bytes] = []
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body has more than {self._max_body_size} bytes (server.max_body_size)",
            code="body_too_large",
            headers={"connection": "close"},
        )

    async def _watch(self) -> None:
        """Cancel the task that answers when the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._has_ended:
            self.client_has_gone = True
            self._stop()

    def _stop(self) -> None:
        """Cancel the task that answers: nothing more can be sent."""
        self.is_over = True
        if self._task is not None:
            self._task.cancel()

    async def send(self, message: Message) -> None:
        """Send a part of the answer; what is sent to HEAD has no end to be waited for."""
        if self.is_over:
            return
        if message.get("more_body", False) and self.scope["method"] == "HEAD":
            message = {**message, "more_body": False}
            self._stop()
        if message["type"] == "http.response.start":
            self._status = message["status"]
            own = [(b"x-request-id", self.id.encode()), *self.extra_headers]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        elif not message.get("more_body", False):
            self._has_ended = True
        await self._send(message)

    async def preflight(self) -> None:
        """Answer what a browser asks before a page of another site may."""
        self.extra_headers += [
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-allow-headers", _ALLOWED_HEADERS.encode()),
            (b"access-control-max-age", b"600"),
        ]
        await self.send({"type": "http.response.start", "status": 204, "headers": []})
        await self.send({"type": "http.response.body", "body": b""})

    async def fail(self, error: Exception) -> None:
        """Answer with an error, or end the connection if another answer has begun."""
        if isinstance(error, ClientDisconnect):
            self.client_has_gone = True
            return
        if isinstance(error, HTTPException):
            method, path = self.scope["method"], self.scope["path"]
            missing = f"there is no {method} {path} here; see /openapi.json"
            error = ApiError(error.status_code, missing, headers=dict(error.headers or {}))
        found = as_api_error(error, self.scope["state"].get("fields", ()))
        self.scope["state"]["log"]["error"] = found.code
        if self._status is not None:
            if (connection := self.scope["state"].get("connection")) is not None:
                connection.abort()
            return
        body = msgspec.json.encode(self._form.of(found))
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **found.all_headers(),
        }
        if self._watcher is None and self._has_long_body():
            headers["connection"] = "close"  # the rest of the body is not read
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        start = {"type": "http.response.start", "status": found.status, "headers": encoded}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})

    def end(self) -> None:
        """Nothing of it is of interest any more."""
        self._has_ended = True
        if self._watcher is not None:
            self._watcher.cancel()

    def record(self) -> dict[str, Any]:
        """Return what the access log says of it."""
        client = self.scope.get("client")
        return {
            "method": self.scope["method"],
            "path": self.scope["path"],
            "status": _CLOSED if self.client_has_gone else self._status,
            "seconds": round(time.monotonic() - self._began, 4),
            "client": client[0] if client else None,
            "request_id": self.id,
            **self.scope["state"]["log"],
        }


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
            self._refuse(b"431 Request Header Fields Too Large")
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
            self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        """Answer what is not a whole request, unless another answer is being sent, and close."""
        cycle = self.cycle
        is_sending = cycle is not None and cycle.response_started and not cycle.response_complete
        if not is_sending and not self.transport.is_closing():
            head = b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head)
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
