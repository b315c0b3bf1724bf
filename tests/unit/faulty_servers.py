"""Servers that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

import socket
from typing import Any, ClassVar, Literal
from unittest.mock import patch

from pydantic import Field

from paged_plugins.server.http.server import HttpServer
from paged_plugins.server.settings import HttpSettings


class FaultyServerSettings(HttpSettings):
    """Options of a server."""

    name: Literal["faulty"] = "faulty"
    port: int = Field(default=0, ge=0, le=65535, description="a free one by default")


class PortServer(HttpServer):
    """Does not say what is wrong with a port."""

    def _bind(self) -> Any:
        try:
            return super()._bind()
        except Exception as error:
            raise OSError(str(error)) from error


class PatientServer(HttpServer):
    """Waits for requests as long as they take."""

    def __init__(self, options: HttpSettings, service: Any) -> None:
        super().__init__(options.model_copy(update={"read_timeout": 3600.0}), service)


class SharedPortServer(HttpServer):
    """Shares the port with others of its kind."""

    def _bind(self) -> Any:
        with patch.object(socket, "SO_REUSEADDR", socket.SO_REUSEPORT):
            return super()._bind()


class PeersServer(HttpServer):
    """Knows all connections that there were."""

    def __init__(self, options: HttpSettings, service: Any) -> None:
        super().__init__(options, service)
        self.seen: list[str] = []

    async def start(self) -> None:
        await super().start()
        self._state.connections = _Seen(self.seen)  # type: ignore[assignment]


class _Seen(set[Any]):
    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def add(self, each: Any) -> None:
        self.seen.append(repr(each))
        super().add(each)


class CommonServer(HttpServer):
    """Closes with each server all that there are."""

    open: ClassVar[list[HttpServer]] = []

    async def start(self) -> None:
        await super().start()
        self.open.append(self)

    async def close(self) -> None:
        for each in self.open:
            await HttpServer.close(each)
        self.open.clear()
        await super().close()
