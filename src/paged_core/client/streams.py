"""The front end's side of the line: a copy of each request, its text, and its reader."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from paged_core.client.engine_client import ClientHealth, ClientState, EngineClient, OutputStream
from paged_core.client.news import Gain, News, Start, from_ranked
from paged_core.engine.clock import SystemClock
from paged_core.engine.outcome import EngineMetrics
from paged_core.errors import EngineError, EngineLost, RequestError
from paged_core.ids import SeqId
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_core.text.generation import Generation
from paged_core.text.outputs import OutputDelta, RequestOutput

SHUTTING_DOWN = "it is being shut down"
TRIES = 2
"""Engines that a request may take with it before it is given up."""


class CopiedStream(OutputStream):
    """Reads a copy of a request's group, which news of the engine bring up to date."""

    def __init__(
        self,
        number: int,
        generation: Generation,
        stop: Callable[[CopiedStream], None],
        clock: Callable[[], float],
    ) -> None:
        self.number, self.request = number, generation.request
        self.prompt = generation.prompt
        self.was_read = False
        """True if anything of the answer was given to the reader."""
        self.has_started = False
        self.tries = 1
        """Engines that it was given to."""
        self._generation = generation
        self._stop, self._clock = stop, clock
        self._has_news, self._end = asyncio.Event(), asyncio.Event()
        self._tell: Callable[[], None] = self._has_news.set
        self._deltas: deque[OutputDelta] = deque()
        self._error: Exception | None = None
        self._make_group()

    def _make_group(self) -> None:
        self.group = SequenceGroup(self.request, self.number, SeqId(0))
        self._generation.group = self.group

    @property
    def num_cached_tokens(self) -> int | None:  # type: ignore[override]
        return self.group.num_cached

    @property
    def has_ended(self) -> bool:
        """Return whether nothing more will come from the engine."""
        return self.group.status is Status.FINISHED or self._error is not None

    # ------------------------------------------------------------------ reading

    async def __anext__(self) -> OutputDelta:
        while not self._deltas:
            self._has_news.clear()
            self._deltas.extend(self.take())
            if not self._deltas:
                if self.has_ended:
                    raise StopAsyncIteration
                await self._has_news.wait()
        return self._deltas.popleft()

    def take(self) -> list[OutputDelta]:
        deltas = self._generation.take()
        if deltas:
            self.was_read = True
        elif self._error is not None:
            raise self._error
        return deltas

    def listen(self, call: Callable[[], None], /) -> None:
        self._tell = call
        call()

    async def wait(self) -> RequestOutput:
        await self._end.wait()
        if self._error is not None:
            raise self._error
        return self.output()

    def output(self) -> RequestOutput:
        return self._generation.output()

    def close(self) -> None:
        self._stop(self)

    # ------------------------------------------------------------------ news

    def start(self, start: Start) -> None:
        """The first tokens are about to come, or the end."""
        self.has_started = True
        self.group.num_cached = start.num_cached
        self.group.first_token_at = self._clock()
        if start.prompt_logprobs is not None:
            self.group.prompt_logprobs = [
                each and from_ranked(each) for each in start.prompt_logprobs
            ]

    def append(self, token_id: int) -> None:
        """The only sequence gained a token."""
        self.group.sequences[0].tokens.append(token_id)
        self._tell()

    def gain(self, gain: Gain) -> None:
        """A sequence gained something."""
        sequences = self.group.sequences
        while len(sequences) <= gain.index:
            sequences.append(
                SequenceState(
                    SeqId(len(sequences)), self.group, len(sequences), list(self.request.prompt)
                )
            )
        sequence = sequences[gain.index]
        sequence.tokens += gain.token_ids
        if gain.logprobs is not None:
            sequence.logprobs = sequence.logprobs or []
            sequence.logprobs += [from_ranked(each) for each in gain.logprobs]
        sequence.cumulative_logprob, sequence.score = gain.cumulative_logprob, gain.score
        if gain.finish_reason is not None:
            sequence.finish_reason = FinishReason(gain.finish_reason)
            sequence.stop_reason, sequence.error = gain.stop_reason, gain.error
        self._tell()

    def end(self) -> None:
        """The request has ended."""
        self.group.status, self.group.live = Status.FINISHED, []
        self.group.finished_at = self._clock()
        self._end.set()
        self._tell()

    def fail(self, error: Exception) -> None:
        """Nothing more will come: what is unread is given first, then the error is raised."""
        self._error = self._error or error
        self._end.set()
        self._tell()

    def begin_again(self) -> None:
        """Forget what was gained and not read: the request is served from its start."""
        self.has_started = False
        self.tries += 1
        self._make_group()

    def abort(self) -> None:
        """Its reader has left."""
        for sequence in self.group.sequences:
            sequence.finish_reason = sequence.finish_reason or FinishReason.ABORT
        self.end()

    def move(self, number: int, stop: Callable[[CopiedStream], None]) -> None:
        """From now on it has this number, and something else is told when it is to stop."""
        self.number, self._stop = number, stop


class Owner(Protocol):
    """A client of several engines, as the client of one of them knows it."""

    def ended(self, stream: CopiedStream, /) -> None:
        """The client holds a request no more."""

    def lost(self, streams: Sequence[CopiedStream], reason: str, /) -> None:
        """The engine has ended by itself; of these nothing was read, and any may serve them."""


class StreamingClient(EngineClient):
    """A client of one :class:`~paged_core.client.service.EngineService`, however that is reached.

    A subclass sends what is asked, calls :meth:`_deliver` with the news, :meth:`_lose` when the
    engine has ended by itself, and sets :attr:`_state`.

    Args:
        owner: is told of requests that end; ``None``: this client is used by itself.
    """

    def __init__(self, owner: Owner | None = None) -> None:
        self.clock = SystemClock()
        self._owner = owner
        self._state, self._reason = ClientState.STARTING, None
        self._streams: dict[int, CopiedStream] = {}
        """Streams that have not ended, by number."""
        self._ids: dict[str, CopiedStream] = {}
        self._numbers = count()
        self._num_waiting = self._num_waiting_tokens = 0
        self._changed = asyncio.Event()

    _state: ClientState
    _reason: str | None

    # ------------------------------------------------------------------ to the engine

    @abstractmethod
    def _add(self, stream: CopiedStream) -> None:
        """Send a request."""

    @abstractmethod
    def _abort(self, number: int) -> None:
        """Send that a request is to be aborted."""

    @abstractmethod
    async def _ask(self, question: str, **arguments: Any) -> Any:
        """Ask the service, and return its answer."""

    # ------------------------------------------------------------------ requests

    def generate(self, request: Request, /, *, prompt: str | None = None) -> OutputStream:
        if self._state is not ClientState.READY:
            raise EngineError(f"no requests are taken: {self._reason or self._state.value}")
        if request.id in self._ids:
            raise RequestError(
                f"request {request.id!r} is being served already; give each request its own id"
            )
        generation = Generation(request, prompt, self.front_end.tokenizer)
        stream = CopiedStream(next(self._numbers), generation, self._stop, self.clock)
        self._begin(stream)
        return stream

    def adopt(self, stream: CopiedStream, /) -> None:
        """Serve a request whose stream another client has made.

        Raises:
            RequestError: a parameter cannot be sent to the engine.
        """
        stream.move(next(self._numbers), self._stop)
        self._begin(stream)

    def _begin(self, stream: CopiedStream) -> None:
        self._add(stream)
        stream.has_started = False
        self._streams[stream.number] = self._ids[stream.request.id] = stream
        self._num_waiting += 1
        self._num_waiting_tokens += len(stream.request.prompt)

    def abort(self, request_id: str, /) -> None:
        if request_id in self._ids:
            self._abort(self._ids[request_id].number)

    def _stop(self, stream: CopiedStream) -> None:
        """Its reader has left: abort it, and forget it at once."""
        if stream.number in self._streams:
            self._abort(stream.number)
            self._forget(stream)
            stream.abort()

    def _forget(self, stream: CopiedStream) -> None:
        """A request has ended."""
        del self._streams[stream.number], self._ids[stream.request.id]
        self._no_longer_waiting(stream)
        if not self._streams:
            self._changed.set()
        if self._owner is not None:
            self._owner.ended(stream)

    def _no_longer_waiting(self, stream: CopiedStream) -> None:
        if not stream.has_started:
            stream.has_started = True
            self._num_waiting -= 1
            self._num_waiting_tokens -= len(stream.request.prompt)

    # ------------------------------------------------------------------ from the engine

    def _deliver(self, news: News) -> None:
        """Bring the streams up to date; in the client's event loop."""
        streams = self._streams
        for start in news.starts:
            if (stream := streams.get(start.number)) is not None:
                self._no_longer_waiting(stream)
                stream.start(start)
        for number, token_id in zip(news.numbers, news.token_ids, strict=True):
            if (stream := streams.get(number)) is not None:
                stream.append(token_id)
        for gain in news.gains:
            if (stream := streams.get(gain.number)) is not None:
                stream.gain(gain)
        for number in news.ended:
            if (stream := streams.get(number)) is not None:
                stream.end()
                self._forget(stream)
        for refusal in news.refused:
            if (stream := streams.get(refusal.number)) is not None:
                stream.fail(refusal.error())
                self._forget(stream)

    def _lose(self, reason: str, *, again: bool) -> list[CopiedStream]:
        """The engine has ended by itself: end what was read of; return what can begin again.

        One that ended every engine it was given to cannot.

        Args:
            again: whether anything can.
        """
        kept: list[CopiedStream] = []
        for stream in list(self._streams.values()):
            if again and not stream.was_read and stream.tries < TRIES:
                if stream.has_started:
                    self._num_waiting += 1
                    self._num_waiting_tokens += len(stream.request.prompt)
                stream.begin_again()
                kept.append(stream)
            else:
                tried = again and not stream.was_read
                stream.fail(
                    EngineLost(f"{reason}; it was served {TRIES} times" if tried else reason)
                )
                self._forget(stream)
        return kept

    # ------------------------------------------------------------------ the rest

    async def metrics(self) -> EngineMetrics:
        found: EngineMetrics = await self._ask("metrics")
        return found

    async def report(self, observer: str, /, since: int = 0) -> Any:
        return await self._ask("report", observer=observer, since=since)

    async def pin(
        self, tokens: Sequence[int], /, *, ttl: float | None = None, cache_salt: str | None = None
    ) -> str:
        question = self._ask("pin", tokens=list(tokens), ttl=ttl, cache_salt=cache_salt)
        asking = asyncio.ensure_future(question)
        try:
            pin: str = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(self._release_unclaimed)
            raise
        return pin

    def _release_unclaimed(self, asked: asyncio.Future[str]) -> None:
        """Release a pin whose caller was cancelled before it had its id."""
        if not asked.cancelled() and asked.exception() is None:
            releasing = asyncio.ensure_future(self._ask("release", pin=asked.result()))
            releasing.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def release(self, pin: str, /) -> None:
        await self._ask("release", pin=pin)

    async def reset_prefix_cache(self) -> bool:
        return bool(await self._ask("reset_prefix_cache"))

    def health(self) -> ClientHealth:
        return ClientHealth(
            state=self._state,
            reason=self._reason,
            num_unfinished=len(self._streams),
            num_waiting=self._num_waiting,
            num_waiting_tokens=self._num_waiting_tokens,
        )

    async def drain(self) -> None:
        if self._state is not ClientState.FAILED:
            self._state, self._reason = ClientState.DRAINING, SHUTTING_DOWN
        while self._streams:
            self._changed.clear()
            await self._changed.wait()

    def _end_streams(self) -> None:
        """The client is being closed."""
        self._state, self._reason = ClientState.FAILED, "it is closed"
        for stream in list(self._streams.values()):
            with suppress(EngineError):
                self._stop(stream)
