"""The page's files, and the feed that asks an engine for what those who look have not seen."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("starlette", reason="the extra `serve` is not installed")

from starlette.applications import Starlette
from starlette.testclient import TestClient

from paged_core.client.engine_client import ClientHealth, ClientState
from paged_core.errors import EngineError, RequestError
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import load_settings
from paged_plugins.server.page import routes as feed_module
from paged_plugins.server.page.routes import FOLDER, LiveFeed, Page
from paged_plugins.server.settings import PageSettings


class FakeClient:
    """An engine in which something happens whenever ``news`` grows."""

    def __init__(self) -> None:
        self.news = 10
        self.asked: list[int] = []
        self.state = ClientState.READY
        self.failure: Exception | None = None
        self.took = 0.0
        self.answers = asyncio.Event()
        self.answers.set()

    async def report(self, observer: str, /, since: int = 0) -> dict[str, Any]:
        assert observer == "live_view"
        self.asked.append(since)
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return {"cursor": self.news, "since": since, "took": self.took}

    def health(self) -> ClientHealth:
        return ClientHealth(state=self.state)


async def next_event(events: AsyncIterator[bytes]) -> dict[str, Any]:
    """The data of the next event; its id is added as a number."""
    while True:
        text = (await asyncio.wait_for(anext(events), 20)).decode()
        if not text.startswith(":"):
            number, data = re.fullmatch(r"id: (\d+)\ndata: (.*)\n\n", text).groups()  # type: ignore[union-attr]
            return {**json.loads(data), "id": int(number)}


def live(
    test: Callable[[FakeClient, LiveFeed], Coroutine[Any, Any, None]],
) -> Callable[..., None]:
    """Run a coroutine as a test, with an engine and a feed that asks it."""

    def run() -> None:
        async def main() -> None:
            client = FakeClient()
            await test(client, LiveFeed(client, period=0.001))  # type: ignore[arg-type]

        asyncio.run(main())

    return run


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


@live
async def test_the_feed_asks_only_while_it_is_looked_at(client: FakeClient, feed: LiveFeed) -> None:
    await asyncio.sleep(0.02)
    assert client.asked == []
    async with aclosing(feed.events()) as events:
        first = await next_event(events)
        assert (first["id"], first["state"], first["view"]["since"]) == (10, "ready", 0)
        client.news = 11
        assert (await next_event(events))["view"]["since"] == 10
    await until(lambda: feed._poller is None)
    count = len(client.asked)
    await asyncio.sleep(0.02)
    assert len(client.asked) == count


@live
async def test_the_feed_asks_once_for_all_who_have_seen_the_same(
    client: FakeClient, feed: LiveFeed
) -> None:
    viewers = [feed.events() for _ in range(5)]
    waiting = [asyncio.create_task(next_event(viewer)) for viewer in viewers]
    assert len({event["id"] for event in await asyncio.gather(*waiting)}) == 1
    assert client.asked == [0]
    waiting = [asyncio.create_task(next_event(viewer)) for viewer in viewers]
    await until(lambda: client.asked.count(10) > 2)
    client.news = 11
    await asyncio.gather(*waiting)
    assert set(client.asked) == {0, 10}
    for viewer in viewers:
        await viewer.aclose()  # type: ignore[attr-defined]


@live
async def test_who_reads_the_feed_slowly_gets_more_at_a_time(
    client: FakeClient, feed: LiveFeed
) -> None:
    async with aclosing(feed.events()) as slow, aclosing(feed.events()) as quick:
        await next_event(slow)
        for news in range(11, 20):
            await next_event(quick)
            client.news = news
        client.news = 20
        event = await next_event(slow)
    assert (event["view"]["since"], event["id"]) == (10, 20)


@live
async def test_the_feed_says_what_is_wrong_and_goes_on(client: FakeClient, feed: LiveFeed) -> None:
    async with aclosing(feed.events()) as events:
        await next_event(events)
        client.failure, client.state = EngineError("it is gone"), ClientState.RESTARTING
        event = await next_event(events)
        assert event["view"] is None
        assert (event["state"], event["reason"]) == ("restarting", "it is gone")
        assert event["id"] == 10
        client.failure, client.state = None, ClientState.READY
        assert (await next_event(events))["view"]["since"] == 10
        client.failure = RequestError("no such observer")
        assert (await next_event(events))["reason"] == "no such observer"


@live
@patch.object(feed_module, "PATIENCE", 0.01)
async def test_the_feed_says_that_an_engine_is_silent(client: FakeClient, feed: LiveFeed) -> None:
    client.answers.clear()
    async with aclosing(feed.events()) as events:
        assert "does not answer" in (await next_event(events))["reason"]
        client.answers.set()
        assert (await next_event(events))["reason"] is None


@live
async def test_the_feed_fails_for_all_who_look_and_can_be_asked_again(
    client: FakeClient, feed: LiveFeed
) -> None:
    client.failure = RuntimeError("a fault in the client")
    for _ in range(2):
        viewers = [feed.events(), feed.events()]
        asked = [asyncio.create_task(next_event(viewer)) for viewer in viewers]
        for each in asyncio.as_completed(asked):
            with pytest.raises(RuntimeError, match="a fault"):
                await each
    client.failure = None
    async with aclosing(feed.events()) as events:
        assert (await next_event(events))["id"] == 10


@live
async def test_the_feed_ends_with_the_engine(client: FakeClient, feed: LiveFeed) -> None:
    """A server that closes need not wait for those who look."""
    async with aclosing(feed.events()) as events:
        await next_event(events)
        client.state = ClientState.DRAINING
        assert (await next_event(events))["state"] == "draining"
        assert [event async for event in events] == []


@live
@patch.object(feed_module, "PING", 0.01)
async def test_the_feed_pings_while_there_is_no_news(client: FakeClient, feed: LiveFeed) -> None:
    async with aclosing(feed.events()) as events:
        await next_event(events)
        assert await anext(events) == b": ping\n\n"
        client.news = 11
        assert (await next_event(events))["id"] == 11


@live
async def test_the_feed_asks_less_often_for_what_takes_long(
    client: FakeClient, feed: LiveFeed
) -> None:
    client.took = 60.0
    async with aclosing(feed.events()) as events:
        await next_event(events)
        client.news = 11
        await asyncio.sleep(0.1)
    assert client.asked == [0]


class FakeService:
    def __init__(self) -> None:
        self.registry = Registry.discover()
        resolved = load_settings(overrides={"num_blocks": 77})
        self.settings, self.origins = resolved.settings, resolved.origins
        self.model_names = ("demo", "alias")
        self.client = FakeClient()


@pytest.fixture(scope="module")
def browser() -> TestClient:
    return TestClient(Starlette(routes=Page(PageSettings(), FakeService()).routes()))  # type: ignore[arg-type]


class TestFiles:
    def test_have_their_types_and_a_strict_policy(self, browser: TestClient) -> None:
        paths = {"/": "text/html", "/page/page.css": "text/css", "/page/app.js": "text/javascript"}
        for path, kind in paths.items():
            answer = browser.get(path)
            assert answer.status_code == 200
            assert answer.headers["Content-Type"].startswith(kind)
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "script-src 'self'" in policy
            assert "unsafe" not in policy

    def test_are_sent_once(self, browser: TestClient) -> None:
        tag = browser.get("/page/app.js").headers["ETag"]
        again = browser.get("/page/app.js", headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert browser.get("/page/app.js", headers={"If-None-Match": '"x"'}).status_code == 200

    def test_are_those_of_the_folder_and_no_others(self, browser: TestClient) -> None:
        for path in ("/page/", "/page/../routes.py", "/page/%2e%2e/routes.py", "/page/none.js"):
            assert browser.get(path).status_code == 404

    def test_need_nothing_from_elsewhere(self, browser: TestClient) -> None:
        """Every file that is named is there; no other server is; nothing is inline."""
        for path in FOLDER.iterdir():
            text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"https?:|//\w+\.|@import|\bstyle=|\bon\w+=\"", text), path
            for named in re.findall(r"""["'(](/page/[\w.]+)""", text):
                assert browser.get(named).status_code == 200, (path, named)
        assert not re.search(r"<script(?![^>]*src=)|<style", (FOLDER / "index.html").read_text())


class TestAbout:
    def test_says_where_each_setting_is_from_and_lists_plugins(self, browser: TestClient) -> None:
        about = browser.get("/live/about").json()
        settings = {each["key"]: each for each in about["settings"]}
        assert settings["num_blocks"] == {
            "key": "num_blocks", "value": "77", "layer": "python", "from": ""
        }  # fmt: skip
        assert settings["scheduler.max_num_seqs"]["layer"] == "default"
        routes = json.loads(settings["routes"]["value"])  # one of them has an option
        assert [each["name"] for each in routes] == ["openai", "responses", "anthropic", "page"]
        assert settings["observers"]["value"] == "[]"
        assert {"policies", "metrics"} <= {each["name"] for each in about["plugins"]}
        assert ("evictor", "lru") in {(each["slot"], each["name"]) for each in about["components"]}


def test_a_cursor_that_is_no_number_is_none() -> None:
    page = Page(PageSettings(), FakeService())  # type: ignore[arg-type]
    seen: list[int] = []

    class Feed:
        async def events(self, since: int) -> AsyncIterator[bytes]:
            seen.append(since)
            yield b""

    page._feeds[None] = Feed()  # type: ignore[assignment]
    client = TestClient(Starlette(routes=page.routes()))
    for given in ("7", "x", "-1", "9" * 30, "٣"):
        client.get("/live/events", headers={"Last-Event-ID": given.encode()})
    assert seen == [7, 0, 0, 0, 0]
