"""What is served: a model behind an engine client, its names, and how much may wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from math import ceil
from typing import Any, TypeVar

from paged_core.client.engine_client import (
    ClientHealth,
    ClientState,
    EngineClient,
    OutputStream,
)
from paged_core.interfaces.grammar import CANNOT_GO_ON
from paged_core.request import FinishReason
from paged_core.sampling_params import SamplingParams
from paged_core.settings.schema import Resolved
from paged_core.text.front_end import FrontEnd
from paged_core.text.generation import Generation
from paged_core.text.outputs import OutputDelta, RequestOutput
from paged_core.text.prompts import CHARACTERS_PER_TOKEN, Prompt
from paged_plugins.instruments import Counter
from paged_plugins.server.errors import RETRY_SECONDS, ApiError, refused
from paged_plugins.server.openai.logprobs import TokenBytes
from paged_plugins.server.parsers.choice import Parsers
from paged_plugins.server.settings import HttpSettings

_SHORT = 4096
"""Characters that are formatted and tokenised between two events of the loop, and not beside it."""
_LONGEST_TEXT = 1 << 20
"""Characters that may be tokenised, however few of their tokens the model can take: a second's
work."""
_LONGEST_RETRY = 60
_RULED_OUT = ("every token is ruled out", CANNOT_GO_ON)
"""What executors say where a request's own parameters leave nothing to sample."""

Result = TypeVar("Result")


def with_served_name(resolved: Resolved, options: HttpSettings) -> Resolved:
    """Return settings of which the observers know the model by the name that clients give it."""
    if not options.served_model_name:
        return resolved
    named = {"model_name": options.served_model_name[0]}
    observers = [
        each.model_copy(update=named) if getattr(each, "model_name", "") is None else each
        for each in resolved.settings.observers
    ]
    settings = resolved.settings.model_copy(update={"observers": tuple(observers)})
    return replace(resolved, settings=settings)


class Service:
    """A model that is served.

    Args:
        client: started, or about to be.
        resolved: the settings of the engine and of the server, and where each was written.
        options: of the server.
    """

    def __init__(self, client: EngineClient, resolved: Resolved, options: HttpSettings) -> None:
        self.client, self.options = client, options
        self.settings, self.origins = resolved.settings, resolved.origins
        self.registry = resolved.registry
        self.model_names = options.served_model_name or (self.settings.model,)
        self.created = int(time.time())
        self.is_stopping = False
        """Whether nothing more will be taken, because it is told to end."""
        self.num_open = 0
        """Requests of HTTP that are being answered."""
        self.answers: dict[str, Answer] = {}
        """What is being generated, by the id of the answer."""
        self.rejections = Counter(
            "vllm:admission_rejections",
            "Requests that were refused because too much waited already.",
            label="reason",
        )
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            self.rejections.add(0, reason)
        self._thread = ThreadPoolExecutor(1, "paged_core tokenizer")
        self._num_in_thread = 0
        self._wait = 0.0
        """Seconds that requests waited for their first token lately."""

    def close(self) -> None:
        """End the thread that tokenises long prompts."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def front_end(self) -> FrontEnd:
        """What makes requests of prompts.

        Raises:
            ApiError: the client has not started yet.
        """
        if self.client.health().state is ClientState.STARTING:
            raise self._not_ready(self.client.health())
        return self.client.front_end

    @cached_property
    def parsers(self) -> Parsers:
        """What takes the model's answers apart; it is asked for once the client has started."""
        return Parsers(self.settings, self.registry, self.front_end.tokenizer)

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """The bytes of single tokens."""
        return TokenBytes(self.front_end.tokenizer)

    # ------------------------------------------------------------------ before the engine

    def check_model(self, name: str | None) -> str:
        """Return the name that an answer has; ``None``: the first one.

        Raises:
            ApiError: no such model is served.
        """
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            served = ", ".join(self.model_names)
            message = f"no model is called {name!r} here; there is {served}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return name

    def check_room(self, num_tokens: int = 0) -> None:
        """Refuse a request if the engine takes none, or too much waits for it already.

        An engine for which nothing waits takes any request that it can serve.

        Raises:
            ApiError: 503 or 429.
        """
        health = self.client.health()
        if health.state is not ClientState.READY:
            raise self._not_ready(health)
        waiting = health.num_waiting + self._num_in_thread
        tokens = health.num_waiting_tokens + num_tokens
        options = self.options
        limits = {
            "max_num_queued_reqs": waiting >= options.max_waiting_requests,
            "max_num_queued_tokens": tokens > options.max_waiting_tokens,
        }
        if waiting and any(limits.values()):
            self.rejections.add(1, next(reason for reason, over in limits.items() if over))
            raise self._queue_is_full(
                f"{waiting} requests with {health.num_waiting_tokens} tokens of prompts wait "
                f"already; at most {options.max_waiting_requests} with "
                f"{options.max_waiting_tokens} may"
            )

    def check_length(self, name: str, num_characters: int) -> None:
        """Refuse text that would be tokenised whole, and is too long for that.

        Args:
            name: of the field that holds it.

        Raises:
            ApiError: 400.
        """
        longest = max(_LONGEST_TEXT, CHARACTERS_PER_TOKEN * self.front_end.max_model_len)
        if num_characters > longest:
            raise refused(
                name,
                f"{name} has {num_characters} characters, and at most {longest} are tokenised; "
                "send less at a time",
            )

    def _queue_is_full(self, why: str) -> ApiError:
        return ApiError(
            429,
            f"{why}: try again later",
            code="queue_full",
            retry_after=min(ceil(self._wait), _LONGEST_RETRY),
        )

    def _not_ready(self, health: ClientHealth) -> ApiError:
        state = ClientState.DRAINING if self.is_stopping else health.state
        why = health.reason or f"the engine is {state.value}"
        return ApiError(
            503,
            f"no requests are taken: {why}",
            code=f"engine_{state.value}",
            retry_after=RETRY_SECONDS,
        )

    async def off_loop(self, call: Callable[[], Result], size: int) -> Result:
        """Call something that uses the front end: at once if it is short, or else in a thread.

        The front end is used by one thread at a time, so what is short waits for what is not.

        Args:
            size: characters that it has to look at.

        Raises:
            ApiError: too many wait for the thread.
        """
        if size <= _SHORT and not self._num_in_thread:
            return call()
        if self._num_in_thread >= self.options.max_waiting_requests:
            raise self._queue_is_full(f"{self._num_in_thread} requests wait to be tokenised")
        self._num_in_thread += 1
        running = asyncio.get_running_loop().run_in_executor(self._thread, call)
        running.add_done_callback(self._left_thread)
        return await running

    def _left_thread(self, _: object) -> None:
        self._num_in_thread -= 1

    def generations(
        self,
        answer_id: str,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        fields: Mapping[str, Any],
        deadline: float | None,
    ) -> list[Generation]:
        """Return what an engine is to be given for each prompt.

        Args:
            fields: of :class:`~paged_core.request.Request`.
            deadline: seconds from now by which it is to have ended.

        Raises:
            RequestError: a prompt or a parameter can never be served.
        """
        arrival = self.client.clock()
        when = None if deadline is None else arrival + deadline
        single = len(prompts) == 1
        return [
            self.client.front_end.generation(
                prompt,
                sampling,
                arrival=arrival,
                request_id=answer_id if single else f"{answer_id}-{place}",
                deadline=when,
                **fields,
            )
            for place, prompt in enumerate(prompts)
        ]

    def waited(self, seconds: float) -> None:
        """Note how long a request waited for its first token."""
        self._wait += 0.1 * (seconds - self._wait)


class Answer:
    """What the engine generates for one request of the API: a stream for each of its prompts.

    Use it in a ``with`` block: leaving it before the end aborts what has not ended.

    Raises:
        RequestError: the id is in use.
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
        self.id, self.streams = answer_id, list[OutputStream]()
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
        service.answers[answer_id] = self

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompts."""
        return sum(len(stream.request.prompt) for stream in self.streams)

    @property
    def num_cached_tokens(self) -> int:
        """Those of them that the cache served."""
        return sum(stream.num_cached_tokens or 0 for stream in self.streams)

    @property
    def counts(self) -> dict[str, int | str]:
        """What the access log says of it."""
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
            RequestError: the engine refuses the request.
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
        """Whether there is nothing more to take, now or later."""
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
            health = self._service.client.health()
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

    def __exit__(self, *_: object) -> None:
        self._service.answers.pop(self.id, None)
        self._close_streams()
