"""The conformance class of servers."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing, suppress
from itertools import count
from time import monotonic
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import pytest

from paged_core.errors import SettingsError
from paged_plugins.server.server import Server
from paged_plugins.server.service import Service
from paged_plugins.server.testing.services import check_loops, serving
from paged_testing.component import ComponentConformance

_SECONDS = 30.0
_PATIENCE = 0.3
"""Seconds in which something is answered, if anything is."""
_RESET = struct.pack("ii", 1, 0)
"""A socket that does not linger is reset when it is closed."""
_CHANCE = re.compile(rb"\d\d:\d\d:\d\d")
"""Times of a day."""
_NOWHERE = "192.0.2.1"
"""An address that no machine has."""


class ServerConformance(ComponentConformance):
    """Subclass it for a server component, with options by which it listens at a free port::

    class TestMyServer(ServerConformance):
        component = {"name": "my_server", "port": 0}
    """

    slot: ClassVar[str] = "server"
    requests: ClassVar[Sequence[bytes]] = (
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-request-id: {number}\r\n\r\n",
        b'{"id": {number}, "prompt": "{number}"}\n',
        b"{number}\n",
    )
    """Texts that clients send, each on a connection of its own, with a number for ``{number}``."""

    def make(self, service: Service) -> Server:
        """A fresh component."""
        made = self.build(service)
        assert isinstance(made, Server)
        return made

    def other(self, **options: Any) -> Self:
        """Return the cases of other options."""
        return self.variant(component={**self._table, **options})

    def run(self, test: Any, *, start: bool = True) -> None:
        """Run a test with a server that listens."""

        async def main() -> None:
            async with serving(self.registry, start=start) as service:
                service.client.is_slow = True  # what is being answered takes some time
                server = self.make(service)
                await server.start()
                try:
                    await test(server)
                finally:
                    await server.close()

        asyncio.run(asyncio.wait_for(main(), _SECONDS))

    # ------------------------------------------------------------------ written cases

    def test_listens_where_it_says(self) -> None:
        """Also before the engine is ready."""

        async def test(server: Server) -> None:
            _, writer = await connect(server.address)
            writer.close()

        self.run(test, start=False)
        with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
            self.other(host="::1").run(test)

    def test_says_that_it_cannot_listen(self) -> None:
        """Where another one does, and at an address that is none here; and can be closed then."""

        async def refuse(host: str, port: int) -> None:
            async with serving(self.registry, start=False) as service:
                server = self.other(host=host, port=port).make(service)
                with pytest.raises(SettingsError):
                    await server.start()
                await server.close()

        async def beside(server: Server) -> None:
            at = urlsplit(server.address)
            await refuse(str(at.hostname), at.port or 0)

        with socket.create_server(("127.0.0.1", 0)) as taken:
            asyncio.run(refuse("127.0.0.1", taken.getsockname()[1]))
        asyncio.run(refuse(_NOWHERE, 0))
        self.run(beside)

    def test_answers_as_alone_after_another_server_and_beside_other_requests(self) -> None:
        async def test(first: Server) -> None:
            async def ask(data: bytes) -> bytes:
                return _CHANCE.sub(b"#", await exchange(first.address, data))

            sent = [*self._requests(0), *self._requests(1)]
            before = [await ask(data) for data in sent]
            reader, writer = await connect(first.address)
            async with serving(self.registry) as service:
                second = self.make(service)
                await second.start()
                assert first.address != second.address, "two servers have one address"
                await second.close()
            after = [await ask(data) for data in sent]
            beside = await asyncio.gather(*map(ask, sent))
            for data, one, again, other in zip(sent, before, after, beside, strict=True):
                assert bool(one) == bool(again), (
                    f"{data!r} is answered {one!r}, after another's close() {again!r}"
                )
                assert one != again or one.startswith(other) or other.startswith(one), (
                    f"{data!r} is answered {one!r}, at once with others {other!r}"
                )
            assert not reader.at_eof(), "close() of one server ends a connection of another"
            writer.close()

        self.run(test)

    @pytest.mark.parametrize("closes", [False, True])
    def test_ends_connections(self, closes: bool) -> None:
        """On which no whole request comes in time, though a letter now and then; and all when it is
        closed, also while something is being answered: it listens no more."""

        async def test(server: Server) -> None:
            whole = self._requests(0)
            sent = [*(each[: len(each) // 2] for each in whole), b"", *(whole if closes else ())]
            opened = [await connect(server.address) for _ in sent]
            for (_, writer), data in zip(opened, sent, strict=True):
                writer.write(data)
            await asyncio.sleep(0.01)
            address = server.address
            how = "close()" if closes else "read_timeout=1"
            if closes:
                await server.close()
            for (reader, writer), data in zip(opened, sent, strict=True):
                rest = asyncio.ensure_future(reader.read())
                for _ in range(int(_SECONDS / 3 / _PATIENCE)):
                    if (await asyncio.wait({rest}, timeout=_PATIENCE))[0]:
                        break
                    writer.write(data[:1])
                assert rest.done(), f"{how} leaves a connection open on which {data!r} was sent"
                rest.exception()  # it may have been reset
                writer.close()
            if closes:
                with pytest.raises(OSError):
                    await connect(address)
                await server.close()

        self.other(read_timeout=1).run(test)

    num_uses: ClassVar[int] = 16

    def uses(self) -> Callable[[int], object]:
        """Clients send what there is to send: in turns they reset the connection, go at once, or
        wait for the answer, which is still there. An hour passes after each use."""
        check_loops(self.package)
        loop, stack, hours = asyncio.SelectorEventLoop(), AsyncExitStack(), count(1)

        async def begin() -> tuple[Server, list[bytes]]:
            service = await stack.enter_async_context(serving(self.registry))
            server = self.make(service)
            await server.start()
            stack.push_async_callback(server.close)
            answered = [await exchange(server.address, each) for each in self._requests(0)]
            return server, [
                each for each, found in zip(self.requests, answered, strict=True) if found
            ]

        server, answered = loop.run_until_complete(begin())
        if self._request is not None:
            self._request.addfinalizer(loop.close)
            self._request.addfinalizer(lambda: loop.run_until_complete(stack.aclose()))

        async def use(number: int) -> None:
            for data in self._requests(number):
                await leave(server.address, data, is_reset=True)
                await leave(server.address, data, is_reset=False)
            for data in self._requests(number, answered):
                for _ in range(20):  # it may refuse some while others that have gone are answered
                    if await exchange(server.address, data):
                        break
                    await asyncio.sleep(_PATIENCE / 4)
                else:
                    raise AssertionError(
                        f"{data!r} was answered, and is no more after clients have sent "
                        f"{self.requests} and reset their connections, or gone"
                    )
            passed, now = next(hours) * 3600, monotonic
            loop.time = lambda: now() + passed  # type: ignore[method-assign]
            await asyncio.sleep(0.002)

        return lambda number: loop.run_until_complete(use(number))

    def _requests(self, number: int, of: Sequence[bytes] | None = None) -> list[bytes]:
        of = self.requests if of is None else of
        return [each.replace(b"{number}", b"%d" % (1024 + number)) for each in of]


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an address such as ``http://127.0.0.1:8000``."""
    found = urlsplit(address)
    assert found.hostname, f"{address!r} names no host"
    assert found.port, f"{address!r} names no port"
    return await asyncio.open_connection(found.hostname, found.port)


async def leave(address: str, data: bytes, *, is_reset: bool) -> None:
    """Send something, and go without an answer."""
    _, writer = await connect(address)
    writer.write(data)
    await asyncio.sleep(0.002)
    with suppress(OSError):
        if is_reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.close()
    await asyncio.sleep(0.002)


async def exchange(address: str, data: bytes) -> bytes:
    """Return what a server answers, which may be nothing."""
    reader, writer = await connect(address)
    with closing(writer), suppress(TimeoutError, OSError):
        writer.write(data)
        return await asyncio.wait_for(reader.read(1 << 16), _PATIENCE)
    return b""
