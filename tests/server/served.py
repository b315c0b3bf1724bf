"""A server on a free port, in a thread of the test's process or in a process of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from time import monotonic, sleep
from typing import Any, TypeVar

import msgspec
from starlette.routing import Match

from paged_core.client.in_process import InProcessClient
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import load_settings
from paged_plugins.http_client import fastest_loop
from paged_plugins.server.http.endpoint import EVENTS, Endpoint
from paged_plugins.server.http.server import HttpServer
from paged_plugins.server.service import Service, with_served_name

T = TypeVar("T")
SECONDS = 120.0
"""Time after which a test that waits has failed; no test asserts how long anything takes."""
LONG = {"prompt": "x", "ignore_eos": True, "max_tokens": 900, "stream": True}
"""A request that takes long, in tokens."""
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "degrees": {"type": "integer", "minimum": -50, "maximum": 50},
    },
    "required": ["city", "degrees"],
    "additionalProperties": False,
}


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in the event loop that servers have."""
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(main)


class Served:
    """A server in a thread, whose service and client a test may look at.

    Args:
        server: options of the server.
        start: the engine, too.
        registry: ``None``: what is installed.
        engine: settings of the engine.
    """

    def __init__(
        self,
        server: Mapping[str, Any] | None = None,
        *,
        start: bool = True,
        registry: Registry | None = None,
        **engine: Any,
    ) -> None:
        self._start = start
        table = {"host": "127.0.0.1", "port": 0, "access_log": False, **(server or {})}
        given = {"num_blocks": 256, "observers": ["metrics"], **engine, "server": table}
        resolved = load_settings(registry, overrides=given, environ={})
        self._resolved = with_served_name(resolved, resolved.settings.server)  # type: ignore[attr-defined]
        self._started: Future[None] = Future()
        self._thread = Thread(target=lambda: run(self._serve()), daemon=True)

    def __enter__(self) -> Served:
        self._thread.start()
        self._started.result(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "the server does not end"

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            self.client = InProcessClient(self._resolved.settings, self._resolved.registry)
            options: Any = self._resolved.settings.server  # type: ignore[attr-defined]
            self.service = Service(self.client, self._resolved, options)
            self.server = HttpServer(options, self.service)
            await self.server.start()
            if self._start:
                await self.client.start()
        except BaseException as error:
            self._started.set_exception(error)
            raise
        self._started.set_result(None)
        await self._stop.wait()
        await self.client.close()
        await self.server.close()
        self.service.close()

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def health(self) -> Any:
        """Return the state of the engine."""

        async def ask() -> Any:
            return self.client.health()

        return self.call(ask())

    def wait_until_idle(self) -> None:
        """Wait until the engine has no request and all blocks are free."""
        engine = self.client.engine
        total = engine.kv_cache.num_blocks
        wait_until(
            lambda: (
                not self.health().num_unfinished
                and not engine.has_unfinished
                and engine.kv_cache.num_free == total
            ),
            "requests or blocks are left",
        )

    # ------------------------------------------------------------------ asking

    def connect(self) -> socket.socket:
        """Return a connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Return the status, the body (read as JSON if it is that) and the headers.

        What an endpoint answers is checked: it is as the OpenAPI document says.
        """
        status, found, answered = ask(self.port, method, path, body, headers)
        scope = {"type": "http", "path": path, "method": method}
        for route in self.server.routes:
            if isinstance(route, Endpoint) and route.matches(scope)[0] is Match.FULL:
                if status != 200:
                    assert status in route.errors, f"{method} {path}: {status} is not documented"
                    if method != "HEAD":
                        msgspec.convert(found, route.error)
                elif answered["content-type"].startswith(EVENTS):
                    assert route.events is not None
                elif not isinstance(route.answer, str) and method != "HEAD":
                    msgspec.convert(found, route.answer, strict=False)
        return status, found, answered

    def error(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the error of an answer that is one, as OpenAI's are."""
        status, found, _ = self.ask("POST", path, body, headers)
        assert set(found) == {"error"}, found
        assert set(found["error"]) == {"message", "type", "param", "code"}
        assert len(found["error"]["message"].encode()) <= 1024
        return status, found["error"]


def ask(
    port: int, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any, Mapping[str, str]]:
    """Send one request, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, dict(headers or {}))
        answer = connection.getresponse()
        content = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        if content and found.get("content-type", "").startswith("application/json"):
            return answer.status, json.loads(content), found
        return answer.status, content.decode(), found
    finally:
        connection.close()


@contextmanager
def open_request(
    served: Served, body: dict[str, Any], path: str = "/v1/completions"
) -> Iterator[Any]:
    """Send a request, and hold its connection."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    with served.connect() as connection:
        connection.sendall(head.encode() + data)
        yield connection


def read_until(connection: socket.socket, what: bytes) -> bytes:
    """Read until something was received; fail at the end of the connection."""
    data = b""
    while what not in data:
        part = connection.recv(4096)
        assert part, data
        data += part
    return data


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the other side closes."""
    data = b""
    while part := connection.recv(65536):
        data += part
    return data


def bias_to(served: Served, text: str) -> dict[str, float]:
    """Return the logit bias that forces a text of one token."""
    tokenizer = served.service.front_end.need_tokenizer("a test")
    (token,) = tokenizer.encode(text, add_special_tokens=False)
    return {str(token): 30.0}


def idle(port: int) -> bool:
    """Return whether the server has no request but the one that asks."""
    load = ask(port, "GET", "/load")[1]
    return not load["num_unfinished"] and not load["server_load"]


def events(text: str) -> list[Any]:
    """Return the events of a stream: objects, ``[DONE]``; an event ``error`` as its object."""
    found = []
    for block in text.split("\n\n"):
        for line in block.split("\n"):
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                found.append(data if data == "[DONE]" else json.loads(data))
    return found


def wait_until(condition: Any, what: str) -> None:
    """Wait until something holds."""
    until = monotonic() + SECONDS
    while not condition():
        assert monotonic() < until, what
        sleep(0.01)


class ServeProcess:
    """``paged-core serve`` in a process of its own."""

    def __init__(self, *options: str, **environ: str) -> None:
        command = [sys.executable, "-m", "paged_core", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        )
        self.lines: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until a line of standard error matches, and return the match."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            found.extend(filter(None, (re.search(pattern, line) for line in list(self.lines))))
            return bool(found) or self.process.poll() is not None

        wait_until(look, f"no line matches {pattern!r}: {self.lines}")
        assert found, f"it ended: {self.lines}"
        return found[0]

    def port(self) -> int:
        """Wait until it serves, and return the port."""
        return int(self.wait_for(r"is served at http://127\.0\.0\.1:(\d+)")[1])

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end, and return the exit status."""
        status = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return status


@contextmanager
def serve_process(*options: str, **environ: str) -> Iterator[ServeProcess]:
    """Start ``paged-core serve``, and kill it if it has not ended by itself."""
    served = ServeProcess(*options, **environ)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
        served.wait()
