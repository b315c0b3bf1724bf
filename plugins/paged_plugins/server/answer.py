"""Answers: what an engine generates for one request of an API, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from paged_core.client.engine_client import ClientState, OutputStream
from paged_core.errors import AdmissionRefused
from paged_core.interfaces.grammar import CANNOT_GO_ON
from paged_core.request import FinishReason
from paged_core.sampling_params import SamplingParams
from paged_core.text.front_end import Prompt
from paged_core.text.generation import Generation
from paged_core.text.outputs import OutputDelta, RequestOutput
from paged_plugins.server.errors import ApiError, answered
from paged_plugins.server.service import Service
from paged_plugins.server.settings import HttpSettings

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ],
}
_RULED_OUT = ("every token is ruled out", CANNOT_GO_ON)
"""Errors of executors where a request's own parameters leave nothing to sample."""


def generations(
    service: Service,
    answer_id: str,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    fields: Mapping[str, Any],
    deadline: float | None,
) -> list[Generation]:
    """Return the requests that an engine is given, one for each prompt.

    Args:
        fields: values for :class:`~paged_core.request.Request`.
        deadline: seconds from now by which all must have ended.

    Raises:
        RequestError: a prompt or a parameter can never be served.
        ApiError: the engine has not started yet.
    """
    front_end = service.front_end
    arrival = service.client.clock()
    when = None if deadline is None else arrival + deadline
    return [
        front_end.generation(
            prompt,
            sampling,
            arrival=arrival,
            request_id=f"{answer_id}-{next(service.numbers)}",
            deadline=when,
            **fields,
        )
        for prompt in prompts
    ]


class Answer:
    """Answer to one request of an API, as the engine generates it: a stream for each prompt.

    Use it in a ``with`` block: leaving it before the end aborts what has not ended.

    Raises:
        EngineError, ApiError: no requests are taken, or too many wait.
    """

    def __init__(
        self,
        service: Service,
        answer_id: str,
        generations: Sequence[Generation],
        deadline: float | None = None,
    ) -> None:
        service.check_room(sum(len(each.request.prompt) for each in generations))
        self.id, self.streams = _unused(answer_id, service.aborts.values()), list[OutputStream]()
        self.num_generated = 0
        """Tokens generated so far."""
        self._fresh: dict[int, None] = {}
        """Places of prompts of which there may be something to take."""
        self._service = service
        self._began = time.monotonic()
        self._deadline = None if deadline is None else self._began + deadline
        self._has_begun = False
        try:
            for each in generations:
                made = service.client.generate(each.request, prompt=each.prompt)
                self.streams.append(made)
        except BaseException:
            self._close_streams()
            raise
        service.aborts[self.abort] = self.id

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompts."""
        return sum(len(stream.request.prompt) for stream in self.streams)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the cache served."""
        return sum(stream.num_cached_tokens or 0 for stream in self.streams)

    @property
    def counts(self) -> dict[str, int | str]:
        """Entries of the access log."""
        return {
            "id": self.id,
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_generated,
        }

    def within_deadline(self) -> asyncio.Timeout:
        """Return a context that raises ``TimeoutError`` once the deadline has passed."""
        left = None if self._deadline is None else self._deadline - time.monotonic()
        return asyncio.timeout(left)

    def listen(self, call: Callable[[], None]) -> None:
        """Have something called when there is something to take; it must not raise."""
        for place, stream in enumerate(self.streams):
            stream.listen(partial(self._tell, place, call))

    def _tell(self, place: int, call: Callable[[], None]) -> None:
        self._fresh[place] = None
        call()

    def take(self) -> Iterator[tuple[int, OutputDelta]]:
        """Yield what the sequences have gained, each beside the place of its prompt.

        Raises:
            ApiError: a sequence ended with an error, or was aborted.
            RequestError: the engine, or its admission, refuses the request.
            EngineLost: the engine ended.
        """
        while self._fresh:
            place, _ = self._fresh.popitem()
            stream = self.streams[place]
            for delta in stream.take():
                self._note(delta)
                yield place, delta
            if stream.has_ended:
                stream.take()  # raises what ended it

    @property
    def has_ended(self) -> bool:
        """Return whether there is nothing more to take, now or later."""
        return not self._fresh and all(stream.has_ended for stream in self.streams)

    def _note(self, delta: OutputDelta) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._service.waited(time.monotonic() - self._began)
        if delta.finish_reason is not None:
            self._check_end(delta)
        self.num_generated += len(delta.token_ids)

    async def outputs(self) -> list[RequestOutput]:
        """Return the outputs when all have ended.

        Raises: as :meth:`take`.
        """
        outputs = await asyncio.gather(*(stream.wait() for stream in self.streams))
        for output in outputs:
            for each in output.outputs:
                self._check_end(each)
                self.num_generated += len(each.token_ids)
            began = output.metrics.first_token
            if began is not None:
                self._service.waited(began - output.metrics.arrival)
        return outputs

    def _check_end(self, delta: OutputDelta) -> None:
        reason = delta.finish_reason
        if reason is FinishReason.ERROR:
            if (delta.error or "").startswith(_RULED_OUT):
                raise ApiError(400, f"generating failed: {delta.error}", code="ruled_out")
            raise ApiError(500, f"generating failed: {delta.error}", code="generation_failed")
        if reason is FinishReason.IGNORED:
            raise ApiError(400, f"it can never run: {delta.error}", code="cannot_run")
        if reason is FinishReason.ABORT:
            health = self._service.health()
            if health.state is not ClientState.READY:
                why = health.reason or f"the engine is {health.state.value}"
                raise ApiError(503, f"the request was ended: {why}", code="engine_stopped")
            raise ApiError(499, "the request was aborted", code="aborted")

    def abort(self) -> None:
        """Abort it; its reader is told."""
        for stream in self.streams:
            self._service.client.abort(stream.request.id)

    def _close_streams(self) -> None:
        for stream in self.streams:
            stream.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, kind: object, error: object, place: object) -> None:
        if isinstance(error, AdmissionRefused):
            self._service.rejections.add(1, "admission")
        self._service.aborts.pop(self.abort, None)
        self._close_streams()


def _unused(name: str, taken: Collection[str]) -> str:
    """Return an id that no answer has which is being generated: clients may give one twice."""
    if name not in taken:
        return name
    return next(found for number in count(2) if (found := f"{name}-{number}") not in taken)


class Connection(Protocol):
    """The socket beneath an answer, written to directly where its reader keeps up."""

    @property
    def keeps_up(self) -> bool:
        """Return whether the reader takes what is written in time."""

    def write_chunk(self, data: bytes, /) -> None:
        """Write a part of an answer that has begun."""


class Events(Protocol):
    """Encoding of one answer as events."""

    def take(self, place: int, delta: OutputDelta, /) -> bytes:
        """Return the events of what a sequence gained; there may be none.

        Args:
            place: of its prompt.
        """

    async def end(self) -> bytes:
        """Return the last events, where all went well."""


class EventStream:
    """Sends the events of an answer, which it closes when it ends, however it ends.

    It starts with the first event, or with a ping if that takes long: what goes wrong before is an
    answer with a status of its own, and what goes wrong later is an event ``error``, which is the
    last.

    A reader that is slower than the engine gets fewer and longer deltas: none is made before the
    one before it is sent. What a reader keeps up with is written where it is heard of, since to
    wake the task for each token would cost as much as the token does.

    Args:
        failed: makes the last event of what went wrong.
        ping: what is sent where nothing happens.
    """

    def __init__(
        self,
        answer: Answer,
        events: Events,
        options: HttpSettings,
        failed: Callable[[ApiError], bytes] = attrgetter("event"),
        ping: bytes = PING,
    ) -> None:
        self._answer, self._events, self._options = answer, events, options
        self._failed, self._ping_event = failed, ping
        self._has_started = False
        self._is_sending = False
        self._last_sent = 0.0
        self._ping: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._error: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._send = scope, send
        self._connection: Connection | None = scope["state"].get("connection")
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self._watch()
        try:
            with self._answer as answer:
                await self._send_events()
        finally:
            self._answer.listen(_ignore)
            scope["state"]["log"] |= answer.counts
            self._timer.cancel()
            if self._ping is not None:
                self._ping.cancel()

    async def _send_events(self) -> None:
        try:
            async with self._answer.within_deadline():
                self._answer.listen(self._hear)
                while self._error is None and not self._answer.has_ended:
                    await self._news.wait()
                    self._news.clear()
                    if data := self._taken():
                        await self._write(data)
                if self._error is not None:
                    raise self._error
                last = await self._events.end()
        except Exception as error:
            if not self._has_started:
                raise
            found = answered(error, self._scope["state"])
            self._scope["state"]["log"]["error"] = found.code
            last = self._failed(found)
        await self._write(last)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _taken(self) -> bytes:
        """Return the events of what the answer has gained."""
        take, pieces = self._events.take, []
        try:
            for place, delta in self._answer.take():
                pieces.append(take(place, delta))
        except Exception as error:  # noqa: BLE001 - it ends the stream, after what came before it
            self._error = error
        return b"".join(pieces)

    def _hear(self) -> None:
        """There is something to take: write it, or wake the task that writes to slow readers."""
        connection = self._connection
        if (
            connection is not None
            and self._has_started
            and not self._is_sending
            and connection.keeps_up
        ):
            if data := self._taken():
                connection.write_chunk(data)
                self._last_sent = self._loop.time()
            if self._error is None and not self._answer.has_ended:
                return
        self._news.set()

    async def _write(self, data: bytes) -> None:
        self._is_sending = True
        if not self._has_started:
            self._has_started = True
            await self._send(_START)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._is_sending, self._last_sent = False, self._loop.time()

    def _watch(self) -> None:
        """Look now and then whether a ping is due."""
        every = self._options.ping_interval
        if not self._is_sending and self._loop.time() - self._last_sent >= every:
            self._ping = self._loop.create_task(self._write(self._ping_event))
        self._timer = self._loop.call_later(every / 4, self._watch)


def _ignore() -> None:
    """Hear of news that nothing is to be done about."""
