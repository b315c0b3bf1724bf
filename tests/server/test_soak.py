"""A server under clients of all kinds at once, for long: nothing is left, and nothing grows."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import psutil
import pytest

from server.served import SECONDS, ask, serve_process, wait_until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_AT_ONCE = 48


class Clients:
    """Clients that ask, read as they like, and go when they like."""

    def __init__(self, port: int, seed: int) -> None:
        self._port, self._chance = port, random.Random(seed)
        self.ended: Counter[str] = Counter()
        """How many ended in each way."""

    async def run(self, number: int) -> None:
        """Send so many requests, some at once."""
        queue = iter(range(number))

        async def work() -> None:
            for _ in queue:
                kind = self._chance.choice([*KINDS])
                self.ended[await asyncio.wait_for(self._one(kind), SECONDS)] += 1

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))

    async def _one(self, kind: str) -> str:
        chance = self._chance
        body: Any = {"max_tokens": chance.randrange(1, 40), "stream": chance.random() < 0.7}
        body["ignore_eos"] = True
        path = chance.choice([COMPLETIONS, CHAT])
        if path == CHAT:
            body["messages"] = [{"role": "user", "content": f"Say {chance.randrange(9)}"}]
        else:
            body["prompt"] = [5 + chance.randrange(9)] * chance.randrange(1, 60)
        body |= KINDS[kind]
        data = json.dumps(body).encode()
        if kind == "garbage":
            data = bytes(chance.randrange(256) for _ in range(50))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            length = len(data) + (kind == "half") * 10
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n"
            writer.write(head.encode() + data)
            if kind in ("goes", "half"):
                await asyncio.sleep(chance.random() * 0.02)
                return kind
            answer = await reader.read(200)
            if kind == "leaves":
                return kind
            rest = bytearray(answer)
            while not _is_whole(rest):
                part = await reader.read(1 << 16)
                assert part, "an answer has no end"
                rest += part
            status = rest[9:12].decode()
            if b"text/event-stream" in rest:
                assert (b"[DONE]" in rest) != (b"event: error" in rest)
            return status
        finally:
            writer.close()


KINDS: dict[str, dict[str, Any]] = {
    "whole": {},
    "another": {},
    "several": {"n": 3},
    "goes": {"max_tokens": 400},
    "leaves": {"max_tokens": 400, "stream": True},
    "half": {},
    "late": {"max_tokens": 400, "deadline": 0.05},
    "wrong": {"temperature": -1},
    "unknown": {"nonsense": 1},
    "long": {"prompt": [5] * 5000, "messages": [{"role": "user", "content": "x" * 9000}]},
    "garbage": {},
}


def _is_whole(answer: bytearray) -> bool:
    head, found, rest = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length: "):
            return len(rest) >= int(line[16:])
    return rest.endswith(b"0\r\n\r\n")


def soak(number: int, seed: int) -> Counter[str]:
    """Run clients, and check what is left; return how they ended."""
    options = ("--num-blocks", "128", "--server.access-log", "false")
    with serve_process(*options) as served:
        port = served.port()
        clients = Clients(port, seed)
        asyncio.run(clients.run(number // 2))
        server = psutil.Process(served.process.pid)
        processes = [server, *server.children()]
        sizes = [process.memory_info().rss for process in processes]
        asyncio.run(clients.run(number - number // 2))
        wait_until(lambda: ask(port, "GET", "/load")[1]["num_unfinished"] == 0, "some are left")
        wait_until(lambda: ask(port, "GET", "/load")[1]["server_load"] == 0, "some are open")
        assert ask(port, "POST", "/reset_prefix_cache")[0] == 200, "blocks are held"
        grown = [
            process.memory_info().rss - size for process, size in zip(processes, sizes, strict=True)
        ]
        assert max(grown) < 64 << 20, f"memory grew by {grown} bytes"
        assert ask(port, "POST", COMPLETIONS, {"prompt": "x"})[0] == 200
        assert clients.ended.total() == number
        assert not {"500", "503", "408"} & set(clients.ended), clients.ended
        return clients.ended


def test_a_short_soak() -> None:
    found = soak(400, seed=2)
    assert found["200"] > 60


@pytest.mark.slow
def test_a_long_soak() -> None:
    soak(20_000, seed=random.randrange(1 << 30))


def test_five_hundred_streams_at_once() -> None:
    async def one(port: int, number: int) -> bytes:
        body = {"prompt": [5 + number % 50, 7], "max_tokens": 8, "stream": True, "ignore_eos": True}
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        answer = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        return answer

    async def main(port: int) -> list[bytes]:
        return await asyncio.gather(*(one(port, number) for number in range(500)))

    with serve_process("--num-blocks", "1024", "--server.access-log", "false") as served:
        answers = asyncio.run(main(served.port()))
        assert len(answers) == 500
        for answer in answers:
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert b'"finish_reason":"length"' in answer
