"""Many users at once, who do all that users do: nothing is left of any of them."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from integration.damage import lengths
from server.served import SECONDS, ServeProcess, ask, events, idle, serve_process, wait_until

pytestmark = pytest.mark.long

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD = {"prompt": "What is a block table?", "temperature": 0, "max_tokens": 8}
LONG = {"prompt": "x", "ignore_eos": True, "max_tokens": 200, "stream": True}
_USERS = 24
_FLAT = 64 << 20
"""Bytes that the processes may grow by after the first third of a soak."""


class User:
    """One who asks one thing after another, each on a connection of its own."""

    def __init__(self, port: int, seed: int, counts: Counter[str]) -> None:
        self.port, self.counts = port, counts
        self.draw = random.Random(seed)

    async def ask_something(self) -> None:
        """Do what users do, and check what comes of it."""
        doings: dict[Callable[[], Coroutine[Any, Any, None]], int] = {
            self.reads_a_whole_answer: 30,
            self.reads_a_stream: 30,
            self.leaves_a_stream: 12,
            self.leaves_before_the_answer: 8,
            self.aborts: 6,
            self.asks_badly: 10,
            self.stops_sending: 4,
            self.gives_up: 4,
        }
        (doing,) = self.draw.choices([*doings], [*doings.values()])
        await doing()
        self.counts[doing.__name__] += 1

    def body(self, **fields: Any) -> tuple[str, dict[str, Any]]:
        """A path, and a request for it; some begin as others do."""
        text = "The cache is divided into blocks. " * self.draw.randrange(4)
        text += str(self.draw.randrange(50))
        path = self.draw.choice([COMPLETIONS, CHAT])
        prompt: dict[str, Any] = {"prompt": text}
        if path == CHAT:
            prompt = {"messages": [{"role": "user", "content": text}]}
        n = self.draw.choice([1, 1, 1, 3])
        return path, {**prompt, "max_tokens": self.draw.randrange(1, 24), "n": n, **fields}

    @asynccontextmanager
    async def request(self, path: str, body: Any) -> AsyncIterator[asyncio.StreamReader]:
        """Send a request, and hold its connection."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
            yield reader
        finally:
            writer.close()

    async def answer(self, path: str, body: Any) -> tuple[int, str]:
        """Return the status and the content of an answer."""
        async with self.request(path, body) as reader, asyncio.timeout(SECONDS):
            head, _, content = (await reader.read(-1)).partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head.lower():
            content = b"".join(_unchunked(content))
        return int(head.split()[1]), content.decode()

    async def reads_a_whole_answer(self) -> None:
        path, body = self.body()
        status, found = await self.answer(path, body)
        assert status == 200, found
        reasons = [choice["finish_reason"] for choice in json.loads(found)["choices"]]
        assert len(reasons) == body["n"]
        assert {*reasons} <= {"stop", "length"}

    async def reads_a_stream(self) -> None:
        path, body = self.body(stream=True)
        status, text = await self.answer(path, body)
        assert status == 200, text
        check_whole(text, body["n"])

    async def leaves_a_stream(self) -> None:
        async with self.request(COMPLETIONS, LONG) as reader, asyncio.timeout(SECONDS):
            try:
                for _ in range(self.draw.randrange(1, 4)):
                    await reader.readuntil(b"data: ")
            except asyncio.IncompleteReadError as end:  # a slow reader gets few and long deltas
                assert b"[DONE]" in end.partial, end.partial

    async def leaves_before_the_answer(self) -> None:
        async with self.request(COMPLETIONS, {**LONG, "stream": self.draw.random() < 0.5}):
            await asyncio.sleep(self.draw.random() * 0.02)

    async def aborts(self) -> None:
        name = f"{self.draw.getrandbits(64):x}"
        body = {**LONG, "request_id": name}
        async with self.request(COMPLETIONS, body) as reader, asyncio.timeout(SECONDS):
            await reader.readuntil(b"data: ")
            status, _ = await self.answer("/abort", {"request_id": f"cmpl-{name}"})
            assert status == 200
            rest = (await reader.read(-1)).decode()
        assert ("event: error" in rest) != ("data: [DONE]" in rest), rest

    async def asks_badly(self) -> None:
        path, body = self.body()
        bad: Any = self.draw.choice(
            [
                {**body, "no_such_field": 1},
                {**body, "temperature": "hot"},
                {**body, "n": 10**9},
                {"prompt": "x" * 5000},
                {**body, "max_tokens": -1},
                b'{"prompt": "x"',
                b'{"prompt": "\xff"}',
            ]
        )
        status, found = await self.answer(path, bad)
        assert 400 <= status < 500, found
        assert set(json.loads(found)) == {"error"}

    async def stops_sending(self) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n")
        writer.write(self.draw.choice([b"", b"\r\n", b'\r\n{"prompt": "x"']))
        await writer.drain()
        writer.close()

    async def gives_up(self) -> None:
        status, found = await self.answer(COMPLETIONS, {**LONG, "stream": False, "deadline": 1e-3})
        assert status in (200, 504), found


def _unchunked(content: bytes) -> list[bytes]:
    found = []
    while content:
        size, _, content = content.partition(b"\r\n")
        found.append(content[: int(size, 16)])
        content = content[int(size, 16) + 2 :]
    return found


def check_whole(text: str, n: int) -> None:
    """Each choice has one reason for its end, and [DONE] is the last event."""
    found = events(text)
    assert found[-1] == "[DONE]", found[-1]
    ends = [
        choice["index"]
        for event in found[:-1]
        for choice in event["choices"]
        if choice["finish_reason"] is not None
    ]
    assert sorted(ends) == list(range(n)), found


async def soak(port: int, count: int, seed: int, counts: Counter[str]) -> None:
    """Let users ask so many things in all."""

    async def use(user: User, number: int) -> None:
        for _ in range(number):
            await user.ask_something()

    async with asyncio.TaskGroup() as group:
        for each in range(_USERS):
            number = count // _USERS + (each < count % _USERS)
            group.create_task(use(User(port, seed * _USERS + each, counts), number))


def no_faults(served: ServeProcess) -> None:
    """The server has told of none, and its engine is still the first one."""
    wrong = "status=50[0-3]|Traceback|engine_lost|error "
    assert not [line for line in served.lines if re.search(wrong, line)]


@lengths(300, 20_000)
def test_a_soak_leaves_nothing(tmp_path: Path, examples: int) -> None:
    """Every block is free, memory is flat, and the processes, sockets and files are gone."""
    options = ("--num-blocks", "192", "--max-model-len", "256")
    with serve_process(*options, TMPDIR=str(tmp_path), OMP_NUM_THREADS="1") as served:
        port, counts = served.port(), Counter[str]()
        processes = [psutil.Process(served.process.pid)]
        processes += processes[0].children()
        expected = ask(port, "POST", COMPLETIONS, GOOD)[1]["choices"]

        def look() -> tuple[int, list[int]]:
            wait_until(lambda: idle(port), "requests are left")
            memory = sum(each.memory_info().rss for each in processes)
            return memory, [each.num_fds() for each in processes]

        asyncio.run(soak(port, examples // 3, 1, counts))
        no_faults(served)
        before, files = look()
        asyncio.run(soak(port, examples - examples // 3, 2, counts))
        no_faults(served)
        after, files_after = look()
        assert after - before < _FLAT, "memory grows"
        wait_until(
            lambda: all(map(int.__le__, look()[1], files)), f"open files: {files}, {files_after}"
        )
        assert ask(port, "POST", COMPLETIONS, GOOD)[1]["choices"] == expected
        assert ask(port, "POST", "/reset_prefix_cache")[0] == 200, "a block is held"
        found = ask(port, "GET", "/metrics")[1]
        assert re.search(r"^vllm:kv_cache_usage_perc{.*} 0(\.0)?$", found, re.MULTILINE), found
        assert counts.total() == examples
        no_faults(served)
        served.send(signal.SIGTERM)
        assert served.wait() == 0
    for process in processes[1:]:
        wait_until(lambda one=process: not one.is_running(), "the engine's process is left")
    assert not [*tmp_path.iterdir()]
    assert not [*Path("/dev/shm").glob("*paged*")]


def test_many_streams_at_once_all_end_well() -> None:
    """None begins to be read before the last has been asked for."""
    number = 500

    async def read_all(port: int) -> None:
        user = User(port, 0, Counter())
        asked, all_asked = 0, asyncio.Event()

        async def read(place: int) -> None:
            nonlocal asked
            body = {"prompt": f"{place} x", "max_tokens": 32, "ignore_eos": True, "stream": True}
            async with user.request(COMPLETIONS, body) as reader:
                asked += 1
                if asked == number:
                    all_asked.set()
                await all_asked.wait()
                head, _, content = (await reader.read(-1)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head + content
            check_whole(b"".join(_unchunked(content)).decode(), 1)

        async with asyncio.TaskGroup() as group:
            for place in range(number):
                group.create_task(read(place))

    with serve_process("--num-blocks", "512", "--max-model-len", "256") as served:
        port = served.port()
        asyncio.run(read_all(port))
        wait_until(lambda: idle(port), "requests are left")
        assert not [line for line in served.lines if re.search(r"status=[45]", line)]
