"""Server without sockets or an engine: each request is answered with what its prompt tells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from paged_backends.text.tokenizer import CheckpointTokenizer
from paged_backends.text.tokenizer_loader import load_tokenizer
from paged_core.client.engine_client import ClientState
from paged_core.client.news import News, Start, gain_of
from paged_core.client.streams import CopiedStream, StreamingClient
from paged_core.ids import SeqId
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup, SequenceState
from paged_core.settings.schema import Resolved, settings_class
from paged_core.text.front_end import FrontEnd
from paged_core.text.generation import Generation
from paged_plugins.server.settings import HttpSettings
from paged_plugins.server.testing.services import WatchedService, ask
from server.told import END, LENGTH, told_tokens


class ToldClient(StreamingClient):
    """Gives the tokens that a prompt tells, a random number at a time."""

    def __init__(self, tokenizer: CheckpointTokenizer, drawn: Random) -> None:
        super().__init__()
        self._tokenizer, self._drawn = tokenizer, drawn
        self._tasks: set[asyncio.Task[None]] = set()
        self.front_end = FrontEnd(tokenizer, max_model_len=LENGTH, name="told")

    async def start(self) -> None:
        self._state = ClientState.READY

    async def close(self) -> None:
        self._end_streams()

    def _abort(self, number: int) -> None:
        pass

    async def _ask(self, question: str, **arguments: Any) -> Any:
        raise NotImplementedError

    def _add(self, stream: CopiedStream) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, stream: CopiedStream) -> None:
        number, request = stream.number, stream.request
        generation = Generation(request, None, self._tokenizer)
        group = generation.group = SequenceGroup(request, 0, SeqId(0))
        (sequence,) = group.sequences
        self._deliver(News(starts=[Start(number=number, num_cached=0)]))
        start, some = 0, self._drawn.choice((1, 7, 400))
        for told, _ in enumerate(self._grown(sequence, generation), 1):
            if told - start == some or sequence.finish_reason is not None:
                self._deliver(News(gains=[gain_of(number, sequence, start)]))
                start, some = told, self._drawn.choice((1, 7, 400))
                await asyncio.sleep(0)
        self._deliver(News(ended=[number]))

    def _grown(self, sequence: SequenceState, generation: Generation) -> Iterator[None]:
        request = generation.request
        told = told_tokens(self._tokenizer, request.prompt)
        (end,) = self._tokenizer.encode(END, add_special_tokens=False)
        for count, token in enumerate([*told, end], 1):
            sequence.tokens.append(token)
            check = generation.stop_check
            if (stop := None if check is None else check(sequence)) is not None:
                sequence.finish_reason, sequence.stop_reason = FinishReason.STOP, stop
            elif token == end:
                sequence.finish_reason = FinishReason.STOP
            elif count == request.sampling.max_tokens:
                sequence.finish_reason = FinishReason.LENGTH
            yield
            if sequence.finish_reason is not None:
                return


class ToldServer:
    """All routes over a :class:`ToldClient`, to be used in one event loop.

    Args:
        folder: of the checkpoint; its tokenizer and template are used, and no model.
        options: settings of the engine, such as parsers.
    """

    def __init__(self, registry: Registry, folder: Path, drawn: Random, **options: Any) -> None:
        tokenizer = load_tokenizer(str(folder))
        assert tokenizer is not None
        settings = settings_class(registry)(model=str(folder), **options)
        self.client = ToldClient(tokenizer, drawn)
        resolved = Resolved(settings, {}, registry)
        self.service = WatchedService(self.client, resolved, HttpSettings())
        self._routes = [
            route
            for chosen in settings.routes  # type: ignore[attr-defined]
            for route in make_component(registry, "routes", chosen, self.service).routes()
        ]

    async def ask(self, path: str, body: Any) -> tuple[int, Any]:
        """Return the status, and the answer: JSON, or the text of a stream's events."""
        if self.client.health().state is not ClientState.READY:
            await self.client.start()
        status, _, content = await ask(self.service, self._routes, "POST", path, body)
        if status == 200 and body.get("stream"):
            return status, content.decode()
        return status, json.loads(content)
