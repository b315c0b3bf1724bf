"""``bench serve``: a load over real sockets, and what is made of the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from statistics import fmean
from typing import Any, cast

import pytest

from paged_core.cli import main
from paged_core.errors import SettingsError
from paged_plugins.bench.serve_command import measures, read_goals
from paged_plugins.http_client import HttpClient, ServerError
from paged_plugins.http_load import Answer, Load, lengths, random_requests, spread
from server.served import Served

pytestmark = pytest.mark.heavy


KEYS = {
    *("date", "backend", "label", "model_id", "num_prompts", "request_rate", "burstiness"),
    *("max_concurrency", "duration", "completed", "failed", "total_input_tokens"),
    *("total_output_tokens", "request_throughput", "request_goodput", "output_throughput"),
    *("total_token_throughput", "input_lens", "output_lens", "ttfts", "itls", "errors"),
    *("max_output_tokens_per_s", "max_concurrent_requests"),
    *(
        f"{how}_{what}_ms"
        for how in ("mean", "median", "std", "p90", "p99")
        for what in ("ttft", "tpot", "itl", "e2el")
    ),
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(num_blocks=512, max_model_len=1024) as server:
        yield server


Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    """Return the status, the output and the errors of the command."""

    def run(*arguments: str) -> tuple[int, str, str]:
        return main(["bench", "serve", *arguments], {}), *capsys.readouterr()

    return run


@pytest.fixture
def found_by(served: Served, bench: Bench) -> Callable[..., dict[str, Any]]:
    def found(*arguments: str) -> dict[str, Any]:
        status, out, err = bench(served.address, *arguments, "--json")
        assert status == 0, err
        document: dict[str, Any] = json.loads(out)
        return document

    return found


def test_a_random_load(found_by: Callable[..., dict[str, Any]]) -> None:
    found = found_by(
        *("--num-prompts", "12", "--input-len", "40", "--output-len", "6", "--range-ratio", "0.5"),
        *("--goodput", "ttft:60000 e2el:60000", "--max-concurrency", "4"),
    )
    assert found.keys() >= KEYS
    assert (found["completed"], found["failed"]) == (12, 0)
    assert found["max_concurrent_requests"] == 4
    assert all(20 <= length <= 60 for length in found["input_lens"])
    assert all(3 <= length <= 9 for length in found["output_lens"])
    assert found["request_goodput"] == pytest.approx(found["request_throughput"])
    assert found["mean_ttft_ms"] == pytest.approx(1000 * fmean(found["ttfts"]))


def test_a_load_fits_the_model_unless_lengths_are_given(served: Served, bench: Bench) -> None:
    status, out, err = bench(served.address, "--num-prompts", "2", "--json")
    assert status == 0, err
    assert "the model takes 1024 tokens, so prompts have 911 and answers 113" in err
    assert json.loads(out)["input_lens"] == [911, 911]
    assert lengths(None, None, 0, 0.0, 1152) == lengths(None, None, 0, 0.0, None) == (1024, 128)
    assert lengths(None, None, 0, 0.0, 1151) == (1024, 127)
    assert lengths(None, 100, 24, 0.5, 1200) == (676, 100)
    assert lengths(700, None, 0, 0.0, 800) == (700, 100)
    assert lengths(700, 700, 0, 0.0, 800) == (700, 700), "the server says what is wrong with it"


def test_conversations_continue_the_answers_that_came(
    found_by: Callable[..., dict[str, Any]],
) -> None:
    found = found_by("--workload", "W7", "--num-prompts", "1")
    assert found["completed"] == found["num_prompts"] == 4
    assert found["cached_share"] > 0.4


def test_prefixes_are_repeated(found_by: Callable[..., dict[str, Any]]) -> None:
    found = found_by(
        *("--workload", "prefix_repetition", "--num-prompts", "8", "--num-prefixes", "2"),
        *("--prefix-len", "64", "--input-len", "4", "--output-len", "2"),
        *("--request-rate", "50", "--burstiness", "0.5", "--max-concurrency", "1"),
    )
    assert found["cached_share"] == pytest.approx(6 * 64 / (8 * 68), abs=0.01)


def test_what_fails_is_told(served: Served, bench: Bench) -> None:
    def failing(*arguments: str) -> str:
        status, _, err = bench(*arguments)
        assert status in (1, 2)
        assert "Traceback" not in err
        return err

    assert "cannot be reached" in failing("http://127.0.0.1:9")
    told = failing(served.address, "--num-prompts", "3", "--input-len", "5000")
    assert "all 3 requests failed, the first with: 400" in told
    assert "no workload is called 'W99'" in failing(served.address, "--workload", "W99")
    assert "has no effect here" in failing(served.address, "--num-blocks", "7")


class _ScriptedServer:
    """Answers each request with the same events, so many turns of the event loop after the last."""

    def __init__(self, events: list[str], turns: int = 0) -> None:
        self._events, self._turns, self._num_asked = events, turns, 0

    async def events(self, _path: str, _body: Any) -> AsyncIterator[str]:
        number, self._num_asked = self._num_asked, self._num_asked + 1
        for _ in range(5 + number * self._turns):
            await asyncio.sleep(0)
        for event in self._events:
            yield event


def answers_of(server: _ScriptedServer, count: int) -> list[Answer]:
    client = cast("HttpClient", server)
    load = Load(client, "m", vocab_size=9, max_concurrency=None, extra={}, told=lambda: None)
    requests = random_requests(
        count,
        **dict.fromkeys(("num_input", "num_output", "num_prefixes", "seed"), 1),
        num_prefix=0,
        range_ratio=0.0,
        vocab_size=9,
    )

    async def run() -> list[Answer]:
        async with asyncio.timeout(20):
            return (await load.run(requests))[0]

    return asyncio.run(run())


@pytest.mark.parametrize("turns", range(6))
def test_a_load_ends_however_close_together_its_last_answers_end(turns: int) -> None:
    """A wake-up that was lost between two of them would have it wait for ever."""
    events = ['{"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}', "[DONE]"]
    for count in (2, 3):
        answers = answers_of(_ScriptedServer(events, turns), count)
        assert [(each.num_output, each.error) for each in answers] == [(1, "")] * count


@pytest.mark.parametrize("event", ["{", "[]", '{"choices": [3]}', '{"usage": {"a": 1}}'])
def test_an_event_that_is_none_of_completions_fails_its_request(event: str) -> None:
    (answer,) = answers_of(_ScriptedServer([event]), 1)
    assert "cannot be read" in answer.error


def test_measures_are_those_of_the_answers() -> None:
    good = Answer(10, 0.0, num_output=5, ttft=0.2, latency=1.0, itls=[0.2] * 4, num_cached=4)
    slow = Answer(30, 0.5, num_output=3, ttft=0.6, latency=1.0, itls=[0.2] * 2, num_cached=0)
    lost = Answer(50, 0.5, error="429")
    found = measures([good, slow, lost], 2.0, goals=read_goals(["ttft:300 tpot:250"]), shares=[90])
    assert (found["completed"], found["failed"]) == (2, 1)
    assert found["request_throughput"] == 1.0
    assert found["request_goodput"] == 0.5
    assert found["output_throughput"] == 4.0
    assert found["total_token_throughput"] == 24.0
    assert found["mean_ttft_ms"] == pytest.approx(400)
    assert found["median_tpot_ms"] == pytest.approx(200)
    assert found["std_e2el_ms"] == 0
    assert found["p90_itl_ms"] == pytest.approx(200)
    assert found["cached_share"] == 0.1
    assert found["max_output_tokens_per_s"] == pytest.approx(4.0)
    assert measures([lost], 2.0, goals={}, shares=[50])["p50_ttft_ms"] is None


@pytest.mark.parametrize("goal", ["ttft", "ttft:x", "ttft:-1", "itl:5", "e2el:0"])
def test_goals_that_are_none(goal: str) -> None:
    with pytest.raises(SettingsError, match="is no goal"):
        read_goals([goal])


def test_arrivals_have_their_rate_whatever_their_burstiness() -> None:
    requests = random_requests(
        4000,
        num_input=1,
        num_output=1,
        num_prefix=0,
        num_prefixes=1,
        range_ratio=0.0,
        vocab_size=100,
        seed=1,
    )
    for burstiness in (0.3, 1.0, 10.0):
        times = [each.at for each in spread(requests, 8.0, burstiness, 3)]
        assert times[0] == 0
        assert times == sorted(times)
        assert times[-1] == pytest.approx(4000 / 8, rel=0.1)


def answered(answer: bytes) -> Any:
    """Events that the client makes of a server's bytes."""

    async def main() -> list[str]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            client = HttpClient(f"http://127.0.0.1:{port}/base/", api_key="k")
            return [data async for data in client.events("/x", {})]

    return asyncio.run(main())


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def test_events_come_whole_however_they_are_cut() -> None:
    body = chunked(b": ping\n\ndata: a\n", b"\nda", b"ta: b\r\ndata: c\r\n\r\n") + b"0\r\n\r\n"
    head = EVENTS + b"Transfer-Encoding: chunked\r\n\r\n"
    assert answered(head + body) == ["a", "b\nc"]
    assert answered(EVENTS + b"Content-Length: 9\r\n\r\ndata: a\n\n") == ["a"]
    assert answered(EVENTS + b"\r\ndata: a\n\n") == ["a"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "broke off"),
        (b"SSH-2.0\r\n", "broke off"),
        (EVENTS + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"data: a\n\n"), "broke off"),
        (EVENTS + b"Content-Length: 99\r\n\r\ndata: a\n\n", "broke off"),
        (
            b"HTTP/1.1 429 No\r\nContent-Length: 28\r\n\r\n" + b'{"error":{"message":"full"}}',
            "full",
        ),
        (b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nbad!", "bad!"),
    ],
)
def test_what_is_no_answer_is_told(answer: bytes, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        answered(answer)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:y", "//"])
def test_what_is_no_url_is_told(url: str) -> None:
    with pytest.raises(SettingsError, match=r"no URL|no port"):
        HttpClient(url)
