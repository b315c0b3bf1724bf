"""Engines that are killed, stopped, given up, drained and started again under load."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from paged_core.client.engine_client import ClientState
from paged_core.errors import EngineError, EngineLost, RequestError
from paged_core.text.outputs import RequestOutput
from paged_plugins.engine_process import backoff
from paged_plugins.replicas.routed_client import RoutedClient
from server.replica_clients import (
    BLOCKS,
    FOREVER,
    LONG,
    all_ready,
    ask,
    make_client,
    pids,
    read,
    replica_of,
    share,
    states_of,
    until,
    with_replicas,
)
from server.served import run
from server.test_process_client import Loop

pytestmark = pytest.mark.heavy

Test = Callable[[RoutedClient], Awaitable[None]]


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[[Test], None]]:
    """Two engines of which each test loses or drains some, and which are ready before each."""
    loop = Loop()

    async def start() -> RoutedClient:
        client = make_client()
        await client.start()
        return client

    patch = pytest.MonkeyPatch()
    patch.setattr(backoff, "_PAUSES", (0.1,) * 30)  # none is given up, however many are lost
    client = loop.run(start())

    async def tried(test: Test) -> None:
        await all_ready(client)
        await asyncio.wait_for(test(client), 240)

    try:
        yield lambda test: loop.run(tried(test), 400)
    finally:
        patch.undo()
        loop.run(client.close())
        loop.stop()


@pytest.mark.parametrize(
    ("how", "victim"), [(signal.SIGKILL, 0), (signal.SIGSTOP, 1)], ids=["killed", "stopped"]
)
def test_what_had_not_begun_is_served_by_the_other(
    serving: Callable[[Test], None], how: signal.Signals, victim: int
) -> None:
    async def test(client: RoutedClient) -> None:
        readers = [ask(client, f"Read {n}", LONG) for n in range(4)]
        for reader in readers:
            await anext(reader)
        unread = [ask(client, f"Unread {n}", LONG) for n in range(8)]
        hit = [replica_of(client, reader) == victim for reader in readers]
        assert Counter(hit) == {True: 2, False: 2}
        assert any(replica_of(client, stream) == victim for stream in unread)
        reading = [asyncio.create_task(read(reader)) for reader in readers]
        pid = pids(client)[victim]
        hanging = client._replicas[victim].client
        assert hanging is not None
        hanging._hang_seconds = 1.5
        async with states_of(client) as states:
            os.kill(pid, how)
            said = f"replica {victim} is"
            await until(lambda: said in (client.health().reason or ""), "it is not told")
            answers = await asyncio.gather(*(stream.wait() for stream in unread))
            ends = await asyncio.gather(*reading, return_exceptions=True)
            assert all(len(each.outputs[0].token_ids) == LONG.max_tokens for each in answers)
            for was_hit, end in zip(hit, ends, strict=True):
                if was_hit:
                    assert isinstance(end, EngineLost), end
                    assert str(pid) in str(end)
                else:
                    assert isinstance(end, RequestOutput), end
            await all_ready(client)
        assert states == {ClientState.READY}
        assert not psutil.pid_exists(pid)
        await share(client)
        found = await client.metrics()
        assert found.num_free_blocks == found.num_blocks

    serving(test)


def test_both_are_killed_at_once(serving: Callable[[Test], None]) -> None:
    async def test(client: RoutedClient) -> None:
        unread = [ask(client, f"Unread {n}", LONG) for n in range(6)]
        left, aborted = ask(client, "Left", FOREVER), ask(client, "Aborted", FOREVER)
        late = ask(client, "Late", FOREVER, deadline=client.clock() + 0.3)
        async with states_of(client) as states:
            for pid in pids(client):
                os.kill(pid, signal.SIGKILL)
            await until(lambda: client.health().state is ClientState.RESTARTING, "it is not told")
            with pytest.raises(EngineError, match="0 of 2 replicas are ready"):
                ask(client, "Refused")
            await until(lambda: len(client._unserved) == 9, "not all are kept")
            assert client.health().num_waiting == client.health().num_unfinished == 9
            left.close()
            client.abort(aborted.request.id)
            assert (await aborted.wait()).outputs[0].finish_reason == "abort"
            assert client.health().num_unfinished == 7
            with pytest.raises(EngineLost, match="its deadline passed"):
                await late.wait()
            answers = await asyncio.gather(*(stream.wait() for stream in unread))
            assert all(len(each.outputs[0].token_ids) == LONG.max_tokens for each in answers)
            await all_ready(client)
        assert states == {ClientState.READY, ClientState.RESTARTING}
        await share(client)

    serving(test)


def test_a_pin_is_held_again_by_an_engine_that_is_started_again(
    serving: Callable[[Test], None],
) -> None:
    async def test(client: RoutedClient) -> None:
        async def held() -> list[bool]:
            clients = [each.client for each in client._replicas if each.client]
            return [(await each.metrics()).num_blocks < BLOCKS for each in clients]

        async def replace(victim: int) -> None:
            os.kill(pids(client)[victim], signal.SIGKILL)
            await until(lambda: client.health().reason, "it is not missed")
            await all_ready(client)

        prefix = list(range(1, 97))
        pin = await client.pin(prefix)
        passing = await client.pin(prefix, ttl=0.5)
        assert await held() == [True, True]
        await asyncio.sleep(0.5)
        await replace(1)
        async with asyncio.timeout(60):
            while await held() != [True, True]:
                await asyncio.sleep(0.01)
        await client.release(pin)
        with pytest.raises(RequestError, match="no pin"):
            await client.release(passing)
        await replace(0)
        assert await held() == [False, False]

    serving(test)


def test_a_request_is_given_to_two_engines_at_most(serving: Callable[[Test], None]) -> None:
    async def test(client: RoutedClient) -> None:
        stream = ask(client, "Hello", FOREVER)
        asked = asyncio.create_task(stream.wait())
        killed: set[int] = set()
        while not asked.done():
            for replica in client._replicas:
                pid = replica.client and replica.client.pid
                if stream in replica.served and pid and pid not in killed:
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.001)
        with pytest.raises(EngineLost, match="served 2 times"):
            await asked
        assert len(killed) == 2
        await all_ready(client)

    serving(test)


def test_one_is_killed_while_it_starts() -> None:
    async def main() -> None:
        client = make_client()
        starting = asyncio.create_task(client.start())
        await until(lambda: len(pids(client)) == 2, "they are not started")
        assert client.health().state is ClientState.STARTING
        os.kill(pids(client)[0], signal.SIGKILL)
        await starting
        assert client.health().state is ClientState.READY
        assert (await ask(client, "Hello").wait()).finished
        await all_ready(client)
        await share(client)
        await client.close()
        with pytest.raises(EngineError, match="it is closed"):
            ask(client, "Hello")

    run(main())


def test_closing_while_they_start_leaves_nothing() -> None:
    async def main() -> None:
        client = make_client()
        starting = asyncio.create_task(client.start())
        await until(lambda: len(pids(client)) == 2, "they are not started")
        await client.close()
        with pytest.raises((asyncio.CancelledError, EngineError)):
            await starting

    before = {each.pid for each in psutil.Process().children()}
    run(main())
    assert {each.pid for each in psutil.Process().children()} <= before


def test_those_that_cannot_start_say_why() -> None:
    async def main() -> None:
        client = make_client(model="no/such/folder", executor="local")
        with pytest.raises(Exception, match="no/such/folder"):
            await client.start()
        assert client.health().state is ClientState.FAILED
        await client.close()

    run(main())


def test_whatever_making_an_engine_raises_it_is_tried_again(
    serving: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no descriptors")

    async def test(client: RoutedClient) -> None:
        with monkeypatch.context() as broken:
            broken.setattr("paged_plugins.replicas.routed_client.ProcessClient", refuse)
            os.kill(pids(client)[0], signal.SIGKILL)
            await until(
                lambda: "no descriptors" in (client.health().reason or ""), "it says no reason"
            )
        await all_ready(client)

    serving(test)


def test_one_that_is_given_up_leaves_and_then_all_have_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "_PAUSES", (0.0, 0.0))

    async def test(client: RoutedClient) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        first, second = pids(client)
        os.kill(first, signal.SIGKILL)
        await until(lambda: client.replicas()[0].state is ClientState.FAILED, "not given up")
        assert client.health().state is ClientState.READY
        assert "given up" in (client.health().reason or "")
        assert (await ask(client, "Hello").wait()).finished
        assert client.replicas()[1].num_routed
        asked = asyncio.create_task(ask(client, "Hello", FOREVER).wait())
        await asyncio.sleep(0)
        os.kill(second, signal.SIGKILL)
        with pytest.raises(EngineLost, match=r"given up.*exit status 1"):
            await asked
        assert client.health().state is ClientState.FAILED
        with pytest.raises(EngineError, match="no requests are taken"):
            ask(client, "Hello")

    with_replicas(test)


# ---------------------------------------------------------------------- one by one


def test_draining_one_loses_nothing(serving: Callable[[Test], None]) -> None:
    async def test(client: RoutedClient) -> None:
        pid = pids(client)[0]
        has_ended = False

        async def load() -> int:
            answered = 0
            while not has_ended:
                found = await read(ask(client, f"Load {answered}", LONG))
                assert len(found.outputs[0].token_ids) == LONG.max_tokens
                answered += 1
            return answered

        loading = [asyncio.create_task(load()) for _ in range(6)]
        await until(lambda: all(each.served for each in client._replicas), "no load")
        async with states_of(client) as states:
            draining = asyncio.create_task(client.drain_replica(0))
            await asyncio.sleep(0)
            assert client.replicas()[0].state is ClientState.DRAINING
            with pytest.raises(RequestError, match="no other replica"):
                await client.drain_replica(1)
            routed = client.replicas()[0].num_routed
            await draining
            assert client.replicas()[0].num_routed == routed
            assert not psutil.pid_exists(pid)
            assert "drained" in (client.health().reason or "")
            await client.start_replica(0)
            assert client.health().reason is None
            assert client.replicas()[0].num_routed == routed
            await until(lambda: client.replicas()[0].num_routed > routed, "it gets no share")
        assert states == {ClientState.READY}
        has_ended = True
        assert all(await asyncio.gather(*loading))
        for call in (client.start_replica(0), client.start_replica(5), client.drain_replica(-1)):
            with pytest.raises(RequestError, match="replica"):
                await call

    serving(test)


def test_draining_waits_for_engines_that_start() -> None:
    async def main() -> None:
        async with make_client() as client:  # the first of its engines is ready, not both
            await asyncio.wait_for(client.drain_replica(1), 120)
            await client.start_replica(1)
            with pytest.raises(RequestError, match="was not drained"):
                await client.start_replica(1)
            await client.drain_replica(1)
            with pytest.raises(RequestError, match="nothing to drain: it was drained"):
                await client.drain_replica(1)

    run(main())


def test_draining_that_is_given_up_gives_it_requests_again(serving: Callable[[Test], None]) -> None:
    async def test(client: RoutedClient) -> None:
        streams = [ask(client, "Hello", FOREVER) for _ in range(2)]
        draining = asyncio.create_task(client.drain_replica(0))
        await asyncio.sleep(0.01)
        draining.cancel()
        with suppress(asyncio.CancelledError):
            await draining
        assert client.health().reason is None
        for stream in streams:
            stream.close()
        await share(client)

    serving(test)


def test_one_that_is_killed_while_it_drains_stays_away(serving: Callable[[Test], None]) -> None:
    async def test(client: RoutedClient) -> None:
        streams = [ask(client, "Hello", LONG) for _ in range(2)]
        draining = asyncio.create_task(client.drain_replica(0))
        await asyncio.sleep(0)
        os.kill(pids(client)[0], signal.SIGKILL)
        with pytest.raises(EngineError, match="replica 0 was lost"):
            await draining
        for stream in streams:
            assert (await stream.wait()).finished
        assert client.replicas()[0].state is ClientState.DRAINING
        await client.start_replica(0)
        await share(client)

    serving(test)
