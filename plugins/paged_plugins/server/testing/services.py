"""A service over an engine without a model, and requests to it without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.routing import BaseRoute, Router
from starlette.types import Message

from paged_core.client.in_process import InProcessClient
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import Resolved, settings_class
from paged_plugins.server.http.gate import Gate, Hosts, Keys
from paged_plugins.server.service import Service
from paged_plugins.server.settings import HttpSettings


@asynccontextmanager
async def serving(registry: Registry, *, start: bool = True) -> AsyncIterator[Service]:
    """Yield a service whose engine is in a thread, and computes nothing.

    Args:
        start: the engine; otherwise it is never ready.
    """
    settings = settings_class(registry)(executor="memory", num_blocks=64, max_model_len=128)
    client = InProcessClient(settings, registry)
    service = Service(client, Resolved(settings, {}, registry), HttpSettings())
    try:
        if start:
            await client.start()
        yield service
    finally:
        await client.close()
        service.close()


async def ask(
    service: Service, routes: Sequence[BaseRoute], method: str, path: str, body: Any = None
) -> tuple[int, bytes]:
    """Return the status and the content with which routes answer.

    Args:
        body: bytes, or what is sent as JSON; ``None``: nothing.
    """
    app = Gate(Router(routes, redirect_slashes=False), service, Keys(()), Hosts(()), ())
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    received: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if received:
            return received.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-length", b"%d" % len(data))],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    assert sent, f"{method} {path} is not answered"
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
