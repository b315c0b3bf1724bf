"""Several engines in processes behind one client: what they answer, and what is lost with one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import psutil
import pytest

from paged_core import LLM, AsyncLLM, SamplingParams
from paged_core.client.engine_client import ClientState, OutputStream
from paged_core.client.in_process import InProcessClient
from paged_core.errors import EngineError, EngineLost, RequestError, SettingsError
from paged_core.text.outputs import RequestOutput
from paged_plugins.engine_process import backoff
from paged_plugins.replicas import routed_client
from paged_plugins.replicas.routed_client import RoutedClient
from server.outputs import comparable, last
from server.test_process_client import (
    CASES,
    FOREVER,
    PROMPTS,
    Loop,
    left_behind,
    own_folder,  # noqa: F401 - a fixture
)

SETTINGS: dict[str, Any] = {"num_blocks": 256, "max_model_len": 256, "threads": 1}
LONG = SamplingParams(max_tokens=120, ignore_eos=True)
SHORT = SamplingParams(max_tokens=8, ignore_eos=True)
_NUMBERS = count()


def make_client(replicas: dict[str, Any] | None = None, **settings: Any) -> RoutedClient:
    table = {"count": 2, "router": "least_loaded", **(replicas or {})}
    client = AsyncLLM(replicas=table, **{**SETTINGS, **settings}).client
    assert isinstance(client, RoutedClient)
    return client


async def until(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


async def all_ready(client: RoutedClient) -> None:
    await until(lambda: client.health().reason is None, "not all are ready")
    assert client.health().state is ClientState.READY


def with_replicas(
    test: Callable[[RoutedClient], Awaitable[None]], *, hang_seconds: float = 10.0, **options: Any
) -> None:
    async def main() -> None:
        client = make_client(**options)
        object.__setattr__(client._context, "hang_seconds", hang_seconds)
        async with client:
            await all_ready(client)
            await asyncio.wait_for(test(client), 240)

    asyncio.run(main())
    assert not left_behind()


def ask(client: RoutedClient, prompt: Any, sampling: SamplingParams = SHORT) -> OutputStream:
    made = client.front_end.generation(
        prompt, sampling, arrival=client.clock(), request_id=f"r{next(_NUMBERS)}"
    )
    return client.generate(made.request, prompt=made.prompt)


async def read(stream: OutputStream) -> RequestOutput:
    async for _ in stream:
        pass
    return stream.output()


def pids(client: RoutedClient) -> list[int]:
    found = [replica.client and replica.client.pid for replica in client._replicas]
    return [pid for pid in found if pid is not None]


def replica_of(client: RoutedClient, stream: OutputStream) -> int:
    return next(each.number for each in client._replicas if stream in each.served)


async def share(client: RoutedClient) -> None:
    """Check that each replica gets requests."""
    before = [each.num_routed for each in client.replicas()]
    await asyncio.gather(*(ask(client, f"Hello {n}").wait() for n in range(4)))
    after = [each.num_routed for each in client.replicas()]
    assert all(now > was for now, was in zip(after, before, strict=True)), (before, after)


@asynccontextmanager
async def states_of(client: RoutedClient) -> AsyncIterator[set[ClientState]]:
    """Watch what `/ready` would say, while the block runs."""
    seen = set[ClientState]()

    async def watch() -> None:
        while True:
            state = client.health().state
            seen.add(state)
            living = [each for each in client._replicas if each.is_ready]
            assert (state is ClientState.READY) == bool(living)
            await asyncio.sleep(0.002)

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


# ---------------------------------------------------------------------- what they answer


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Loop, RoutedClient]]:
    loop = Loop()

    async def start() -> RoutedClient:
        client = make_client(observers=["metrics", "live_view"])
        await client.start()
        await all_ready(client)
        return client

    client = loop.run(start())
    try:
        yield loop, client
    finally:
        loop.run(client.close())
        loop.stop()


@pytest.fixture(scope="module")
def expected() -> Iterator[LLM]:
    with LLM(**SETTINGS) as llm:
        yield llm


@pytest.mark.parametrize("name", CASES)
def test_they_answer_as_llm_does(
    shared: tuple[Loop, RoutedClient], expected: LLM, name: str
) -> None:
    loop, client = shared
    llm = AsyncLLM.from_client(client)
    before = [each.num_routed for each in client.replicas()]

    async def ask() -> list[RequestOutput]:
        return await asyncio.gather(*(last(llm.generate(each, CASES[name])) for each in PROMPTS))

    wanted = expected.generate(PROMPTS, CASES[name])
    assert [comparable(each) for each in loop.run(ask())] == [comparable(each) for each in wanted]
    after = [each.num_routed for each in client.replicas()]
    assert sum(after) - sum(before) == len(PROMPTS)
    assert all(now > was for now, was in zip(after, before, strict=True))


def test_what_is_asked_of_all(shared: tuple[Loop, RoutedClient]) -> None:
    loop, client = shared

    async def check() -> None:
        llm = AsyncLLM.from_client(client)
        pin = await llm.pin_prefix("What is a block table? " * 6)
        assert not await llm.reset_prefix_cache()
        found = await llm.get_metrics()
        assert found.num_blocks < 512  # each holds it
        prompt = "What is a block table? " * 6 + "A"
        both = [ask(client, prompt), ask(client, prompt)]
        assert {replica_of(client, each) for each in both} == {0, 1}
        for each in both:
            await each.wait()
            assert (each.num_cached_tokens or 0) >= 32
        await llm.release(pin)
        with pytest.raises(RequestError, match=f"no pin '{pin}'"):
            await llm.release(pin)
        assert await llm.reset_prefix_cache()
        found = await llm.get_metrics()
        assert found.num_blocks == found.num_free_blocks == 512
        with pytest.raises(RequestError, match=r"longer|max_model_len"):
            await ask(client, [1] * 300).wait()
        assert client.health().num_unfinished == 0

    loop.run(check())


def test_reports_are_merged_or_of_one(shared: tuple[Loop, RoutedClient]) -> None:
    loop, client = shared

    async def check() -> None:
        def ended(page: str, number: int) -> float:
            lines = [line for line in page.splitlines() if f'engine="{number}"' in line]
            found = [line for line in lines if line.startswith("vllm:request_success_total")]
            assert found
            return sum(float(line.rpartition(" ")[2]) for line in found)

        before = await client.report("metrics")
        routed = [each.num_routed for each in client.replicas()]
        held = ask(client, "Hello", FOREVER)
        for _ in range(3):
            await ask(client, "Hello").wait()
        held.close()
        while (await client.metrics()).num_unfinished:
            await asyncio.sleep(0.01)
        page = await client.report("metrics")
        assert page.splitlines().count("# TYPE vllm:num_requests_running gauge") == 1
        counted = [ended(page, number) - ended(before, number) for number in (0, 1)]
        assert counted == [
            each.num_routed - was for each, was in zip(client.replicas(), routed, strict=True)
        ]
        assert counted[0] != counted[1]
        assert (await client.report("live_view@1"))["engine"]["num_blocks"] == 256
        assert (await client.report("live_view"))["whole"]
        for name, reason in {
            "live_view@2": "no replica 2",
            "live_view@x": "names no replica",
            "none": "no observer 'none'",
        }.items():
            with pytest.raises(RequestError, match=reason):
                await client.report(name)

    loop.run(check())


def test_an_id_is_used_once_and_freed(shared: tuple[Loop, RoutedClient]) -> None:
    loop, client = shared

    async def check() -> None:
        made = client.front_end.generation("Hello", LONG, arrival=client.clock(), request_id="one")
        with client.generate(made.request) as stream:
            with pytest.raises(RequestError, match="'one' is being served"):
                client.generate(made.request)
            client.abort("one")
            assert (await stream.wait()).outputs[0].finish_reason == "abort"
        assert (await client.generate(made.request).wait()).finished
        with client.generate(made.request) as stream:
            await anext(stream)
        await until(lambda: not client.health().num_unfinished, "one is left")
        while (found := await client.metrics()).num_unfinished:
            await asyncio.sleep(0.01)
        assert found.num_free_blocks == found.num_blocks

    loop.run(check())


def test_sessions_reach_the_router(shared: tuple[Loop, RoutedClient]) -> None:
    """By the request's own session, or by its tenant."""
    _, client = shared
    routed: list[str] = []

    async def check() -> None:
        book = client._book
        route = book.route
        book.route = lambda request, session: (routed.append(session), route(request, session))[1]  # type: ignore[method-assign]
        try:
            for fields in ({"session": "s", "tenant": "t"}, {"tenant": "t"}, {}):
                made = client.front_end.generation(
                    "Hi", SHORT, arrival=client.clock(), request_id=None, **fields
                )
                await client.generate(made.request).wait()
        finally:
            book.route = route  # type: ignore[method-assign]

    shared[0].run(check())
    assert routed == ["s", "t", ""]


# ---------------------------------------------------------------------- what is lost


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_what_had_not_begun_is_served_by_the_other(how: signal.Signals, victim: int) -> None:
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
        async with states_of(client) as states:
            os.kill(pid, how)
            answers = await asyncio.gather(*(stream.wait() for stream in unread))
            ends = await asyncio.gather(*reading, return_exceptions=True)
            assert all(len(each.outputs[0].token_ids) == 120 for each in answers)
            for was_hit, end in zip(hit, ends, strict=True):
                if was_hit:
                    assert isinstance(end, EngineLost), end
                    assert str(pid) in str(end)
                else:
                    assert isinstance(end, RequestOutput), end
            assert f"replica {victim} is" in (client.health().reason or "")
            await all_ready(client)
        assert states == {ClientState.READY}
        assert not psutil.pid_exists(pid)
        await share(client)
        found = await client.metrics()
        assert found.num_free_blocks == found.num_blocks

    with_replicas(test, hang_seconds=1.5)


def test_both_are_killed_at_once() -> None:
    async def test(client: RoutedClient) -> None:
        unread = [ask(client, f"Unread {n}", LONG) for n in range(6)]
        left, aborted = ask(client, "Left", FOREVER), ask(client, "Aborted", FOREVER)
        async with states_of(client) as states:
            for pid in pids(client):
                os.kill(pid, signal.SIGKILL)
            await until(lambda: client.health().state is ClientState.RESTARTING, "it is not told")
            with pytest.raises(EngineError, match="0 of 2 replicas are ready"):
                ask(client, "Refused")
            await until(lambda: len(client._unserved) == 8, "not all are kept")
            assert client.health().num_waiting == client.health().num_unfinished == 8
            left.close()
            client.abort(aborted.request.id)
            assert (await aborted.wait()).outputs[0].finish_reason == "abort"
            assert client.health().num_unfinished == 6
            answers = await asyncio.gather(*(stream.wait() for stream in unread))
            assert all(len(each.outputs[0].token_ids) == 120 for each in answers)
            await all_ready(client)
        assert states == {ClientState.READY, ClientState.RESTARTING}
        await share(client)

    with_replicas(test)


def test_a_request_is_given_to_two_engines_at_most() -> None:
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

    with_replicas(test)


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

    asyncio.run(main())
    assert not left_behind()


def test_closing_while_they_start_leaves_nothing() -> None:
    async def main() -> None:
        client = make_client()
        starting = asyncio.create_task(client.start())
        await until(lambda: len(pids(client)) == 2, "they are not started")
        await client.close()
        with pytest.raises((asyncio.CancelledError, EngineError)):
            await starting

    before = {each.pid for each in psutil.Process().children()}
    asyncio.run(main())
    assert {each.pid for each in psutil.Process().children()} <= before
    assert not left_behind()


def test_those_that_cannot_start_say_why() -> None:
    async def main() -> None:
        client = make_client(model="no/such/folder")
        with pytest.raises(Exception, match="no/such/folder"):
            await client.start()
        assert client.health().state is ClientState.FAILED
        await client.close()

    asyncio.run(main())
    assert not left_behind()


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


def test_draining_one_loses_nothing() -> None:
    async def test(client: RoutedClient) -> None:
        pid = pids(client)[0]
        has_ended = False

        async def load() -> int:
            answered = 0
            while not has_ended:
                found = await read(ask(client, f"Load {answered}", LONG))
                assert len(found.outputs[0].token_ids) == 120
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

    with_replicas(test)


@pytest.mark.parametrize("number", [0, 1])
def test_draining_waits_for_engines_that_start(number: int) -> None:
    async def main() -> None:
        async with make_client() as client:  # the first of its engines is ready, not both
            await asyncio.wait_for(client.drain_replica(number), 120)
            await client.start_replica(number)
            with pytest.raises(RequestError, match="was not drained"):
                await client.start_replica(number)
            await client.drain_replica(number)
            with pytest.raises(RequestError, match="nothing to drain: it was drained"):
                await client.drain_replica(number)

    asyncio.run(main())
    assert not left_behind()


def test_draining_that_is_given_up_gives_it_requests_again() -> None:
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

    with_replicas(test)


def test_one_that_is_killed_while_it_drains_stays_away() -> None:
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

    with_replicas(test)


# ---------------------------------------------------------------------- settings


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


@pytest.mark.usefixtures("one_core")
def test_few_engines_start_at_once_and_closing_does_not_wait_for_the_others() -> None:
    async def main() -> None:
        client = make_client({"count": 64})
        starting = asyncio.ensure_future(client.start())
        await until(lambda: len(pids(client)) > 1, "none is started")
        for _ in range(20):
            assert len(pids(client)) - sum(each.is_ready for each in client._replicas) <= 2
            await asyncio.sleep(0.01)
        await client.close()
        assert sum(each.client is not None for each in client._replicas) < 64
        with suppress(asyncio.CancelledError):
            await starting

    asyncio.run(main())
    assert not left_behind()


@pytest.mark.usefixtures("one_core")
def test_all_start_although_few_do_at_once() -> None:
    async def test(client: RoutedClient) -> None:
        assert len(pids(client)) == 3
        await share(client)

    with_replicas(test, replicas={"count": 3})


def test_caches_on_one_device_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(available=22 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    reason = r"2 engines .* 15\.00 GiB each take 30\.00 GiB, and 22\.00 GiB .* 11264MiB or less"
    for replicas in ({}, {"devices": ["cpu"]}, {"devices": ["cpu", "cpu"]}):
        with pytest.raises(SettingsError, match=reason):
            make_client(replicas, device="cpu", kv_cache_memory="15GiB")
    make_client({}, device="cpu", kv_cache_memory="11264MiB")
    make_client({"devices": ["cpu", "cuda:0"]}, kv_cache_memory="15GiB")
    make_client({}, device="cuda:0", kv_cache_memory="15GiB")


def test_engines_on_a_device_share_its_fraction() -> None:
    devices = ("cuda:0", "cuda:0", "cuda:1")
    client = make_client({"count": 4, "devices": devices}, kv_cache_memory=0.6)
    found = [client._make_client(each).settings for each in client._replicas]
    assert [each.device for each in found] == [*devices, "cuda:0"]
    assert [each.kv_cache_memory for each in found] == pytest.approx([0.2, 0.2, 0.6, 0.2])


def test_one_engine_is_served_as_without_replicas() -> None:
    assert type(AsyncLLM(replicas={"count": 1}).client) is InProcessClient


def test_one_engine_alone_is_refused_for_several() -> None:
    with pytest.raises(SettingsError, match=r"replicas\.count is 2.*AsyncLLM"):
        LLM(replicas={"count": 2}, **SETTINGS)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"router": "nearest"}, "no router is called 'nearest'"),
        ({"router": {"name": "session", "num_points": 0}}, r"replicas\.num_points|num_points"),
        ({"placement": "moon"}, "placement"),
        ({"count": 0}, "count"),
        ({"count": 65}, r"replicas\.count.*64"),
    ],
)
def test_wrong_options_are_named(table: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        make_client(table)


def test_hit_rates_of_conversations_are_higher_by_prefixes() -> None:
    """Sixteen conversations of four turns, all at once, through two real engines."""

    async def rate(client: RoutedClient) -> float:
        async def talk(number: int) -> None:
            said = f"{number} {number * 7919 % 1000} " * 6
            for turn in range(4):
                said += f"turn {turn} of {number}: please go on with it. "
                said += (await read(ask(client, said))).outputs[0].text

        for start in range(0, 16, 4):
            await asyncio.gather(*(talk(start + each) for each in range(4)))
        found = await client.metrics()
        return found.num_cached_tokens / found.num_prompt_tokens

    rates: dict[str, float] = {}

    async def measure(client: RoutedClient) -> None:
        rates[client._router._what] = await rate(client)

    for name in ("round_robin", "prefix_affinity"):
        settings = {"max_model_len": 512, "num_blocks": 1024}
        with_replicas(measure, replicas={"router": name}, **settings)
    worse, better = rates.values()
    assert better > worse + 0.1, rates


def test_an_exact_index_follows_what_each_cache_holds() -> None:
    """A prompt goes where its prefix is held, also if something else had it computed there."""
    prefix = list(range(1, 97))

    async def test(client: RoutedClient) -> None:
        assert all(each.client for each in client._replicas)

        async def goes_to(replica: int, tail: int) -> OutputStream:
            stream = ask(client, [*prefix, tail])
            assert replica_of(client, stream) == replica
            await stream.wait()
            return stream

        for number in (1, 0):
            one = client._replicas[number].client
            assert one is not None
            pin = await one.pin(prefix)  # past the router, which is told by events alone
            await one.release(pin)
            feed = client._feeds[number]
            seen = feed.num_reports
            await until(lambda f=feed, n=seen: f.num_reports > n + 1, "no events")  # type: ignore[misc]
            stream = await goes_to(number, 200)
            assert stream.num_cached_tokens == 96
            os.kill(pids(client)[number], signal.SIGKILL)  # its blocks are forgotten with it
            await until(lambda: client.health().reason, "it is not missed")
            await all_ready(client)
            assert not client._router._inner._keys[number]  # type: ignore[attr-defined]

    with_replicas(test, replicas={"router": {"name": "prefix_affinity", "index": "exact"}})


def test_what_takes_long_to_report_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_client, "_REPORT_SECONDS", 0.5)

    async def test(client: RoutedClient) -> None:
        os.kill(pids(client)[1], signal.SIGSTOP)
        page = await client.report("metrics")
        assert 'engine="0"' in page
        assert 'engine="1"' not in page

    with_replicas(test, observers=["metrics"])
