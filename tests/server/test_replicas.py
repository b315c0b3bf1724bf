"""Several engines in processes behind one client: what they answer, and their settings."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from paged_core import LLM, AsyncLLM
from paged_core.client.engine_client import OutputStream
from paged_core.client.in_process import InProcessClient
from paged_core.errors import RequestError, SettingsError
from paged_core.text.outputs import RequestOutput
from paged_plugins.replicas import routed_client
from paged_plugins.replicas.routed_client import RoutedClient
from server.outputs import comparable, last
from server.replica_clients import (
    BLOCKS,
    FOREVER,
    LONG,
    SETTINGS,
    SHORT,
    all_ready,
    ask,
    ids,
    make_client,
    pids,
    replica_of,
    share,
    until,
    with_replicas,
)
from server.served import run
from server.test_process_client import CASES, PROMPTS, Loop

pytestmark = pytest.mark.heavy


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


def test_they_answer_as_llm_does(shared: tuple[Loop, RoutedClient]) -> None:
    loop, client = shared
    sampling, prompts = CASES["several"], [ids(each) for each in PROMPTS]
    llm = AsyncLLM.from_client(client)
    before = [each.num_routed for each in client.replicas()]

    async def ask() -> list[RequestOutput]:
        return await asyncio.gather(*(last(llm.generate(each, sampling)) for each in prompts))

    with LLM(**SETTINGS) as alone:
        wanted = alone.generate(prompts, sampling)
    assert [comparable(each) for each in loop.run(ask())] == [comparable(each) for each in wanted]
    after = [each.num_routed for each in client.replicas()]
    assert sum(after) - sum(before) == len(PROMPTS)
    assert all(now > was for now, was in zip(after, before, strict=True))


def test_what_is_asked_of_all(shared: tuple[Loop, RoutedClient]) -> None:
    loop, client = shared

    async def check() -> None:
        llm, prefix = AsyncLLM.from_client(client), ids("What is a block table? " * 6)
        pin = await llm.pin_prefix(prefix)
        assert not await llm.reset_prefix_cache()
        found = await llm.get_metrics()
        assert found.num_blocks < 2 * BLOCKS  # each holds it
        both = [ask(client, [*prefix, 1]), ask(client, [*prefix, 1])]
        assert {replica_of(client, each) for each in both} == {0, 1}
        for each in both:
            await each.wait()
            assert (each.num_cached_tokens or 0) >= 32
        await llm.release(pin)
        with pytest.raises(RequestError, match=f"no pin '{pin}'"):
            await llm.release(pin)
        assert await llm.reset_prefix_cache()
        found = await llm.get_metrics()
        assert found.num_blocks == found.num_free_blocks == 2 * BLOCKS
        with pytest.raises(RequestError, match=r"longer|max_model_len"):
            await ask(client, [1] * 9000).wait()
        assert client.health().num_unfinished == 0

    loop.run(check())


def test_their_observers_write_files_of_their_own(tmp_path: Path) -> None:
    async def check(client: RoutedClient) -> None:
        both = [ask(client, "Hello"), ask(client, "Hello")]
        for each in both:
            await each.wait()

    log = {"name": "decision_log", "path": str(tmp_path / "d.jsonl")}
    with_replicas(check, observers=[log])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["d@0.jsonl", "d@1.jsonl"]
    for each in tmp_path.iterdir():
        assert json.loads(each.read_text("utf-8").splitlines()[0])["step"] == 0


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
        assert (await client.report("live_view@1"))["engine"]["num_blocks"] == BLOCKS
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
        made = client.front_end.generation([1, 2], LONG, arrival=client.clock(), request_id="one")
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
                    [1, 2], SHORT, arrival=client.clock(), request_id=None, **fields
                )
                await client.generate(made.request).wait()
        finally:
            book.route = route  # type: ignore[method-assign]

    shared[0].run(check())
    assert routed == ["s", "t", ""]


def test_what_takes_long_to_report_is_left_out(
    shared: tuple[Loop, RoutedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed_client, "_REPORT_SECONDS", 0.5)
    loop, client = shared
    pid = pids(client)[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        page = loop.run(client.report("metrics"))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert 'engine="0"' in page
    assert 'engine="1"' not in page


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

    run(main())


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
    with pytest.raises(SettingsError, match=r"replicas asks for 2 engines, .*AsyncLLM"):
        LLM(replicas={"count": 2}, **SETTINGS)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"router": "nearest"}, "no router is called 'nearest'"),
        ({"count": 65}, r"replicas\.count.*64"),
    ],
)
def test_wrong_options_are_named(table: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        make_client(table)


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

        one = client._replicas[1].client
        assert one is not None
        pin = await one.pin(prefix)  # past the router, which is told by events alone
        await one.release(pin)
        feed = client._feeds[1]
        seen = feed.num_reports
        await until(lambda: feed.num_reports > seen + 1, "no events")
        stream = await goes_to(1, 200)
        assert stream.num_cached_tokens == 96
        os.kill(pids(client)[1], signal.SIGKILL)  # its blocks are forgotten with it
        await until(lambda: client.health().reason, "it is not missed")
        await all_ready(client)
        assert not client._router._inner._keys[1]  # type: ignore[attr-defined]

    with_replicas(test, replicas={"router": {"name": "prefix_affinity", "index": "exact"}})
