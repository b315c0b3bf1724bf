"""The conformance class of servers."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from paged_plugins.server.server import Server
from paged_plugins.server.service import Service
from paged_plugins.server.testing.services import serving
from paged_testing.component import ComponentConformance

_SECONDS = 30.0


class ServerConformance(ComponentConformance):
    """Subclass it for a server component, with options by which it listens at a free port::

    class TestMyServer(ServerConformance):
        component = {"name": "my_server", "port": 0}
    """

    slot: ClassVar[str] = "server"

    def make(self, service: Service) -> Server:
        """A fresh component."""
        made = self.build(service)
        assert isinstance(made, Server)
        return made

    def run(self, test: Any, *, start: bool = True) -> None:
        """Run a test with a server that listens."""

        async def main() -> None:
            async with serving(self.registry, start=start) as service:
                server = self.make(service)
                await server.start()
                try:
                    await test(server)
                finally:
                    await server.close()

        asyncio.run(asyncio.wait_for(main(), _SECONDS))

    # ------------------------------------------------------------------ written cases

    def test_listens_where_it_says(self) -> None:
        async def test(server: Server) -> None:
            _, writer = await connect(server.address)
            writer.close()

        self.run(test)

    def test_listens_before_the_engine_is_ready(self) -> None:
        async def test(server: Server) -> None:
            _, writer = await connect(server.address)
            writer.close()

        self.run(test, start=False)

    def test_two_do_not_know_each_other(self) -> None:
        async def test(first: Server) -> None:
            async with serving(self.registry) as service:
                second = self.make(service)
                await second.start()
                assert first.address != second.address, "two servers have one address"
                await second.close()
            _, writer = await connect(first.address)
            writer.close()

        self.run(test)

    def test_listens_no_more_once_it_is_closed(self) -> None:
        async def test(server: Server) -> None:
            address = server.address
            await server.close()
            with pytest.raises(OSError):
                await connect(address)
            await server.close()

        self.run(test)

    def test_closing_ends_connections(self) -> None:
        async def test(server: Server) -> None:
            reader, writer = await connect(server.address)
            await asyncio.sleep(0)
            await server.close()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1 << 20)
            writer.close()

        self.run(test)

    def test_what_was_not_started_can_be_closed(self) -> None:
        async def main() -> None:
            async with serving(self.registry, start=False) as service:
                await self.make(service).close()

        asyncio.run(main())


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an address such as ``http://127.0.0.1:8000``."""
    found = urlsplit(address)
    assert found.hostname, f"{address!r} names no host"
    assert found.port, f"{address!r} names no port"
    return await asyncio.open_connection(found.hostname, found.port)
