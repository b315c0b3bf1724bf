"""A service over an engine without a model, and requests to it without a socket."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from time import sleep
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Router
from starlette.types import Message, Receive, Scope, Send

from paged_core.client.engine_client import ClientHealth
from paged_core.client.in_process import InProcessClient
from paged_core.client.news import News
from paged_core.client.streams import CopiedStream
from paged_core.errors import RequestError, error_text
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import Resolved, settings_class
from paged_core.text.front_end import FrontEnd
from paged_core.text.generation import Generation
from paged_plugins.server.http.gate import Gate, Hosts, Keys
from paged_plugins.server.service import Result, Service
from paged_plugins.server.settings import HttpSettings
from paged_testing.telling import modules

_SECONDS = 20
"""In which each request is answered."""
_OF_A_LOOP = (asyncio.Lock, asyncio.Event, asyncio.Condition, asyncio.Semaphore, asyncio.Queue)


def check_loops(package: str) -> None:
    """Check that modules and classes of a package keep nothing that belongs to one event loop."""
    for module in map(sys.modules.__getitem__, modules(package)):
        kinds = (each for each in vars(module).values() if isinstance(each, type))
        owner: Any
        for owner in (module, *kinds):
            found = [key for key, each in vars(owner).items() if isinstance(each, _OF_A_LOOP)]
            assert not found, (
                f"{owner.__name__} keeps {', '.join(found)}, which only one event loop can wait "
                "for: make it where the component is made"
            )


class _Bytes:
    """A tokenizer whose tokens are bytes."""

    num_in_loop = 0
    """Letters and tokens of texts that it looked at in an event loop."""

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        self._looks_at(text)
        return [*text.encode()]

    def _looks_at(self, text: Sequence[object]) -> None:
        with suppress(RuntimeError):  # in another thread
            asyncio.get_running_loop()
            self.num_in_loop += len(text)

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        self._looks_at(token_ids)
        return bytes(token % 256 for token in token_ids).decode(errors="replace")

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], /, *, tokenize: bool = True, **options: Any
    ) -> list[int] | str:
        text = "\n".join(str(each.get("content")) for each in conversation)
        return self.encode(text) if tokenize else text

    def detokenizer(
        self,
        prompt: Sequence[int],
        /,
        *,
        skip_special_tokens: bool = True,
        shown_ids: Collection[int] = (),
    ) -> _ByBytes:
        return _ByBytes()


class _ByBytes:
    """Decodes bytes as they come."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def append(self, token_ids: Sequence[int], /) -> str:
        return self._decoder.decode(bytes(token % 256 for token in token_ids))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _FrontEnd(FrontEnd):
    """Counts the requests that it refuses."""

    num_refused = 0
    longest: int | None = None
    """Tokens that are generated at most."""

    def generation(self, *args: Any, **kwargs: Any) -> Generation:
        if self.longest is not None:
            prompt, sampling = args
            args = prompt, replace(sampling, max_tokens=self.longest)
        try:
            return super().generation(*args, **kwargs)
        except RequestError:
            self.num_refused += 1
            raise


class Client(InProcessClient):
    """Has tokens that are bytes; while it is held, no request comes to an end by itself; while it
    aborts, each is aborted at once; while it is slow, each token is heard of alone."""

    is_held = aborts = is_slow = False
    front_end: _FrontEnd

    async def start(self) -> None:
        await super().start()
        most = self.front_end.max_model_len
        self.tokenizer = _Bytes()
        self.front_end = _FrontEnd(self.tokenizer, max_model_len=most, name="a model of bytes")

    def _tell(self, news: News) -> None:
        super()._tell(news)
        if self.is_slow:
            sleep(0.001)

    def _add(self, stream: CopiedStream) -> None:
        if not self.is_held:
            super()._add(stream)
        if self.aborts:
            self._abort(stream.number)

    @property
    def is_busy(self) -> bool:
        """Return whether a request has not ended."""
        return self.health().num_unfinished > 0


class WatchedService(Service):
    """A service over such a client; while it is full, too much waits to take any request, and while
    it takes its thread, what is short is done there, too.
    """

    client: Client
    is_full = takes_thread = False
    query = b""
    """Sent behind each path; names that begin with `x-` are headers, too."""
    num_clients = 1024
    """Number of the next one: no two have the same address, or the same headers."""

    def health(self) -> ClientHealth:
        most = self.options.max_waiting_requests if self.is_full else 0
        found = super().health()
        return replace(found, num_waiting=found.num_waiting + most)

    async def off_loop(self, call: Callable[[], Result], size: int) -> Result:
        if self.is_full:
            self._num_in_thread += self.options.max_waiting_requests
        try:
            return await super().off_loop(call, sys.maxsize if self.takes_thread else size)
        finally:
            if self.is_full:
                self._num_in_thread -= self.options.max_waiting_requests

    @property
    def num_refused(self) -> int:
        """Return how many requests the front end has refused."""
        return self.client.front_end.num_refused


class Answered(NamedTuple):
    """An answer, as far as it came."""

    status: int
    headers: Headers
    content: bytes


class _Router(Router):
    """Keeps what a route raises."""

    error: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except Exception as error:
            self.error = error
            raise


@asynccontextmanager
async def serving(
    registry: Registry, *, start: bool = True, **values: Any
) -> AsyncIterator[WatchedService]:
    """Yield a service whose engine is in a thread, and computes nothing.

    Args:
        start: the engine; otherwise it is never ready.
        values: settings.
    """
    usual = {"num_blocks": 64, "max_model_len": 128, "block_allocator": "uncached"}
    settings = settings_class(registry)(executor="memory", **{**usual, **values})
    client = Client(settings, registry)
    service = WatchedService(client, Resolved(settings, {}, registry), HttpSettings())
    try:
        if start:
            await client.start()
        yield service
    finally:
        await client.close()
        service.close()


async def ask(
    service: WatchedService,
    routes: Sequence[BaseRoute],
    method: str,
    path: str,
    body: Any = None,
    *,
    until: Callable[[], Awaitable[object]] | None = None,
) -> Answered:
    """Return what routes answer; the status is 0 if the client went before they did, and never 500.

    Args:
        body: bytes, or what is sent as JSON; ``None``: nothing.
        until: waits for what makes the client go; ``None``: nothing does.
    """
    router, number = _Router(routes, redirect_slashes=False), service.num_clients
    service.num_clients += 1
    app = Gate(router, service, Keys(()), Hosts(()), ())
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    received: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if received:
            return received.pop()
        await (until or asyncio.Event().wait)()
        return {"type": "http.disconnect"}

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
        "query_string": service.query,
        "headers": [
            (b"host", b"localhost"),
            (b"content-length", b"%d" % len(data)),
            *((name, b"of %d" % number) for name in (b"user-agent", b"x-request-id", b"cookie")),
            *((name.lower(), b"word") for name in re.findall(rb"(?i)\bx-[\w-]+", service.query)),
        ],
        "client": (f"127.0.{number >> 8 & 255}.{number & 255}", 1024 + number % 60_000),
        "server": ("127.0.0.1", 80),
    }
    what = f"{method} {path}, sent {data[:200]!r},"
    try:
        await asyncio.wait_for(app(scope, receive, send), _SECONDS)
    except TimeoutError:
        raise AssertionError(f"{what} is not answered within {_SECONDS} s") from None
    if not sent:
        return Answered(0, Headers(), b"")
    headers = Headers(raw=[(name.lower(), value) for name, value in sent[0]["headers"]])
    content, status = b"".join(message.get("body", b"") for message in sent[1:]), sent[0]["status"]
    assert status != 500, f"{what} answers with 500: {router.error and error_text(router.error)}"
    return Answered(status, headers, content)
