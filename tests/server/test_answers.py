"""Answers: what is gained is told where it comes, and nothing that came before an end is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paged_core.client.engine_client import ClientState
from paged_core.client.news import Gain, News, Start
from paged_core.client.streams import StreamingClient
from paged_core.sampling_params import SamplingParams
from paged_core.settings.schema import load_settings
from paged_core.text.front_end import FrontEnd
from paged_plugins.server.answer import Answer, EventStream, generations
from paged_plugins.server.service import Service
from server.served import run

pytestmark = pytest.mark.heavy


class Client(StreamingClient):
    """A client whose engine is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.front_end = FrontEnd(None, max_model_len=64, name="none")
        self._state = ClientState.READY

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def _add(self, stream: Any) -> None: ...

    def _abort(self, number: int) -> None: ...

    async def _ask(self, question: str, **arguments: Any) -> Any: ...


class Connection:
    """Connection to which an answer is written."""

    def __init__(self) -> None:
        self.keeps_up, self.written = True, list[bytes]()

    def write_chunk(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None: ...


class Tokens:
    """Events that are the tokens."""

    def take(self, place: int, delta: Any) -> bytes:
        return f"{place}:{delta.token_ids} ".encode()

    async def end(self) -> bytes:
        return b"END"


def opened() -> tuple[Client, Answer, Service]:
    resolved = load_settings(environ={})
    client = Client()
    service = Service(client, resolved, resolved.settings.server)  # type: ignore[attr-defined]
    made = generations(service, "a", [[1, 2, 3]], SamplingParams(detokenize=False), {}, None)
    return client, Answer(service, "a", made), service


def gains(*tokens: int, **ends: Any) -> News:
    return News(
        starts=[Start(number=0, num_cached=0)],
        gains=[Gain(number=0, index=0, token_ids=[*tokens], **ends)],
        ended=[0] if ends else [],
    )


def test_what_a_reader_keeps_up_with_is_written_at_once_and_the_rest_in_order() -> None:
    async def test() -> None:
        client, answer, service = opened()
        connection, sent, may_send = Connection(), list[bytes](), asyncio.Event()
        may_send.set()

        async def send(message: Any) -> None:
            await may_send.wait()
            if body := message.get("body"):
                sent.append(body)

        stream = EventStream(answer, Tokens(), service.options)
        scope: Any = {"state": {"log": {}, "connection": connection}}
        sending = asyncio.create_task(stream(scope, None, send))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        client._deliver(gains(1))
        while not sent:  # the first one goes with the head of the answer
            await asyncio.sleep(0)
        for token in (2, 3):
            client._deliver(News([0], [token]))
        assert connection.written == [b"0:[2] ", b"0:[3] "], "without a turn of the loop"
        connection.keeps_up = False
        may_send.clear()
        client._deliver(News([0], [4]))
        await asyncio.sleep(0.01)
        connection.keeps_up = True  # but what was taken before is still to be sent
        client._deliver(News([0], [5]))
        client._deliver(News([0], [6]))
        assert len(connection.written) == 2
        may_send.set()
        while len(sent) < 3:
            await asyncio.sleep(0)
        client._deliver(gains(7, finish_reason="length"))
        await sending
        assert sent == [b"0:[1] ", b"0:[4] ", b"0:[5, 6] ", b"END"]
        assert connection.written[2:] == [b"0:[7] "]
        assert service.aborts == {}

    run(asyncio.wait_for(test(), 60))
