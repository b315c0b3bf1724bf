"""The server ``http``."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from paged_core.errors import SettingsError
from paged_core.plugins.making import make_component
from paged_plugins.server.routes import Routes
from paged_plugins.server.server import Server
from paged_plugins.server.settings import HttpSettings

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from paged_plugins.server.service import Service

KEYS_VARIABLE = "PAGED_CORE_API_KEY"
_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048
_CLOSE_SECONDS = 2.0
"""For answers that have nothing more to wait for."""
_KEPT_DESCRIPTORS = 64
"""Descriptors that no connection gets: with fewer, no engine could be started again."""


def missing_packages() -> str | None:
    """Say what is missing for this server; it is the check of the component."""
    needed = ("httptools", "msgspec", "starlette", "uvicorn")
    missing = [name for name in needed if find_spec(name) is None]
    if not missing:
        return None
    return f"{', '.join(missing)} is not installed; pip install 'paged-core[serve]'"


class HttpServer(Server):
    """Serves HTTP/1.1 in the event loop that starts it.

    Raises:
        SettingsError: a file of keys or of TLS cannot be read.
    """

    def __init__(self, options: HttpSettings, service: Service) -> None:
        from paged_plugins.server.http.gate import Keys

        self._options, self._service = options, service
        self._keys = Keys(_read_keys(options.api_key_file))
        self._routes: list[BaseRoute] = []
        self._listener: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return self._address

    @property
    def routes(self) -> list[BaseRoute]:
        """All routes, once it has started."""
        return self._routes

    async def start(self) -> None:
        import uvicorn
        from starlette.routing import Router
        from uvicorn.server import ServerState

        from paged_plugins.server.http.connection import BoundedProtocol
        from paged_plugins.server.http.gate import Gate, Hosts

        options = self._options
        self._routes = list(self._all_routes())
        hosts = Hosts((options.host, *options.allowed_hosts))
        router = Router(self._routes, redirect_slashes=False)
        app = Gate(router, self._service, self._keys, hosts, options.allowed_origins)
        protocol = partial(
            BoundedProtocol,
            read_timeout=options.read_timeout,
            write_timeout=options.slow_reader_timeout,
            most=_most_connections(),
        )
        config = uvicorn.Config(
            app,
            http=protocol,  # type: ignore[arg-type]
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            ssl_certfile=options.tls_certificate,
            ssl_keyfile=options.tls_key,
        )
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            raise SettingsError(
                f"server.tls_certificate: cannot be used: {error}; both it and the private key "
                "must be PEM, and server.tls_key name the key unless it is in the same file"
            ) from None
        self._state = ServerState()
        make = partial(protocol, config=config, server_state=self._state, app_state={})
        listening = self._bind()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            make,
            sock=listening,
            ssl=config.ssl,
            ssl_handshake_timeout=options.read_timeout if config.ssl else None,
            backlog=_BACKLOG,
        )
        self._look()
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self._address = f"http{'s' if config.is_ssl else ''}://{shown}:{port}"

    def _look(self) -> None:
        """Have connections looked at now and then, however that ends."""
        seconds = self._options.slow_reader_timeout / 4
        self._looking = asyncio.get_running_loop().call_later(seconds, self._look)
        for connection in list(self._state.connections):
            connection.look()  # type: ignore[union-attr]

    def _all_routes(self) -> Iterator[BaseRoute]:
        from paged_plugins.server.http.endpoint import openapi
        from paged_plugins.server.http.gate import PUBLIC
        from paged_plugins.server.http.own_routes import OwnRoutes

        has_keys = bool(self._keys)
        yield from OwnRoutes(
            self._service, lambda: openapi(self._routes, has_keys=has_keys, public=PUBLIC)
        ).routes()
        service = self._service
        for chosen in getattr(service.settings, "routes"):  # noqa: B009 - a slot of this plugin
            made: Routes = make_component(service.registry, "routes", chosen, service)
            yield from made.routes()

    def _bind(self) -> socket.socket:
        host, port = self._options.host, self._options.port
        try:
            family, kind, number, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listening = socket.socket(family, kind, number)
        except OSError as error:
            raise SettingsError(f"server.host: {host!r} is no address here: {error}") from None
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.setblocking(False)
        except OSError as error:
            listening.close()
            raise SettingsError(
                f"cannot listen at {host}, port {port}: {error.strerror}; choose another one with "
                "--port"
            ) from None
        return listening

    async def close(self) -> None:
        if self._listener is None:
            return
        self._looking.cancel()
        self._listener.close()
        self._listener = None
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_CLOSE_SECONDS)
        for connection in list(self._state.connections):
            with suppress(AttributeError):  # its transport may be gone
                connection.transport.abort()
        for task in list(self._state.tasks):
            task.cancel()
        await asyncio.sleep(0)


def _most_connections() -> int:
    """Return how many connections leave enough descriptors for files, and engines that start."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(1, most - psutil.Process().num_fds() - _KEPT_DESCRIPTORS)


def _read_keys(path: Path | None) -> list[str]:
    """Return the keys of a file and of the environment."""
    lines = os.environ.get(KEYS_VARIABLE, "").split(",")
    if path is not None:
        try:
            lines += path.expanduser().read_text("utf-8").splitlines()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise SettingsError(f"server.api_key_file: cannot read {path}: {why}") from None
    keys = [line.strip() for line in lines if line.strip()]
    if path is not None and not keys:
        raise SettingsError(f"server.api_key_file: {path} has no key; write one on each line")
    return keys
