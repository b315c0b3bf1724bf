"""Checks before every route: hosts, origins, keys, sizes, ids, errors."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import socket
import time
from base64 import b64decode
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any
from uuid import uuid4

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from paged_core.log import get_logger
from paged_plugins.server.errors import ApiError, ErrorAnswer, ErrorForm, answered
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
WARNING_HEADER = b"x-paged-core-warning"
"""Header that says what of a request is not as it was asked."""
_SHORT_BODY = 64 << 10
"""Bytes that may come after a refusal on a connection that is kept."""
_CLOSED = 499
"""The status in the log of a request whose client has gone."""

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
        self._asked = {each.error.asked_by: each.error for each in self._endpoints.values()}
        self._keys, self._hosts, self._origins = keys, hosts, frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["path"])
        form = self._form(scope["path"]) if endpoint is None else endpoint.error
        given = [self._asked[name] for name, _ in scope["headers"] if name in self._asked]
        form = given[0] if given else form
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

    def _form(self, path: str) -> ErrorForm:
        """Return the form of errors of a path that is none: that of the path above it."""
        above = (each for each in self._endpoints.values() if path.startswith(f"{each.path}/"))
        nearest = max(above, key=lambda each: len(each.path), default=None)
        return ErrorAnswer if nearest is None else nearest.error

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
        scope["state"]["read"] = exchange.read
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
            (b"access-control-expose-headers", b"x-request-id, retry-after, " + WARNING_HEADER),
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
        scope["state"]["warnings"] = []

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
            names = {b"x-request-id", self._form.id_header}
            own = [*((name, self.id.encode()) for name in names), *self.extra_headers]
            if warnings := self.scope["state"]["warnings"]:
                own.append((WARNING_HEADER, "; ".join(warnings).encode("latin-1", "replace")))
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
        found = answered(error, self.scope["state"])
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
            **({"warnings": warnings} if (warnings := self.scope["state"]["warnings"]) else {}),
        }
