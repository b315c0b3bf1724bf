"""Service: a model behind an engine client, its names, and how much may wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import count
from math import ceil
from typing import Any, TypeVar

from paged_core.client.engine_client import ClientHealth, ClientState, EngineClient
from paged_core.client.streams import SHUTTING_DOWN
from paged_core.engine.contexts import Maker
from paged_core.errors import RequestError
from paged_core.interfaces.grammar import SupportsVocabulary
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.requests.waiting import QueueBounds
from paged_core.settings.schema import Resolved
from paged_core.text.front_end import CHARACTERS_PER_TOKEN, FrontEnd
from paged_plugins.instruments import Counter
from paged_plugins.server.errors import RETRY_SECONDS, ApiError, refused
from paged_plugins.server.parsers.choice import Parsers
from paged_plugins.server.settings import HttpSettings

_SHORT = 4096
"""Characters that are formatted and tokenised between two events of the loop, and not beside it."""
_LONGEST_TEXT = 1 << 20
"""Characters that may be tokenised, however few of their tokens the model can take: a second's
work."""
_LONGEST_RETRY = 60
_REJECTIONS = {"requests": "max_num_queued_reqs", "tokens": "max_num_queued_tokens"}
"""Names that vLLM has for the limits of the queue."""
NO_CHARACTER = "\ufffd"
"""In the text of a token that is a part of a character."""

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

    Raises:
        PluginError: a parser that the settings name cannot be made.
    """

    def __init__(self, client: EngineClient, resolved: Resolved, options: HttpSettings) -> None:
        self.client, self.options = client, options
        self.settings, self.origins = resolved.settings, resolved.origins
        self.registry = resolved.registry
        self.parsers = Parsers(self.settings, self.registry, lambda: self.front_end.tokenizer)
        self.model_names = options.served_model_name or (self.settings.model,)
        self.created = int(time.time())
        self.is_stopping = False
        """True once nothing more will be taken, because it is told to end."""
        self.num_open = 0
        """Requests of HTTP that are being answered."""
        self.aborts: dict[Callable[[], None], str] = {}
        """Calls that each abort an answer which is being generated, and its id."""
        self.numbers = count()
        """Numbers for the ids of requests, which no two share."""
        self.rejections = Counter(
            "vllm:admission_rejections",
            "Requests that were refused with 429, by the server's limit or the engine's admission.",
            label="reason",
        )
        for reason in (*_REJECTIONS.values(), "admission"):
            self.rejections.add(0, reason)
        self._bounds = QueueBounds(options.max_waiting_requests, options.max_waiting_tokens)
        self._thread = ThreadPoolExecutor(1, "paged_core tokenizer")
        self._num_in_thread = 0
        self._wait = 0.0
        """Seconds that requests waited for their first token lately."""

    def make(self, slot: str, /) -> Any:
        """As :meth:`~paged_core.engine.contexts.Context.make`."""
        return Maker(self.settings, self.registry)(slot)

    def close(self) -> None:
        """End the thread that tokenises long prompts."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def health(self) -> ClientHealth:
        """Return how the engine is; what is told to end takes nothing, however its engine is."""
        health = self.client.health()
        if not self.is_stopping:
            return health
        return replace(health, state=ClientState.DRAINING, reason=health.reason or SHUTTING_DOWN)

    @property
    def front_end(self) -> FrontEnd:
        """Front end, which makes requests of prompts.

        Raises:
            ApiError: the client has not started yet.
        """
        if self.client.health().state is ClientState.STARTING:
            raise self._not_ready(self.health())
        return self.client.front_end

    @cached_property
    def token_pieces(self) -> TokenPieces | None:
        """The bytes of single tokens; ``None``: there is no tokenizer."""
        tokenizer = self.front_end.tokenizer
        return None if tokenizer is None else TokenPieces(tokenizer)

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
        health = self.health()
        if health.state is not ClientState.READY:
            raise self._not_ready(health)
        waiting = health.num_waiting + self._num_in_thread
        limit = self._bounds.exceeded(waiting, health.num_waiting_tokens, num_tokens)
        if limit is not None:
            self.rejections.add(1, _REJECTIONS[limit])
            raise self._queue_is_full(self._bounds.reason(waiting, health.num_waiting_tokens))

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
        why = health.reason or f"the engine is {health.state.value}"
        return ApiError(
            503,
            f"no requests are taken: {why}",
            code=f"engine_{health.state.value}",
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

    def waited(self, seconds: float) -> None:
        """Note how long a request waited for its first token."""
        self._wait += 0.1 * (seconds - self._wait)


class TokenPieces(dict[int, bytes]):
    """Bytes that single tokens add to a text: some are no more than a part of a character.

    They are kept once they were asked for.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._special: dict[int, bool] = {}
        self._parts: list[bytes | None] | None = None

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is no part of a text."""
        if token_id not in self._special:
            self._special[token_id] = not self._tokenizer.decode([token_id, token_id])
        return self._special[token_id]

    def __missing__(self, token_id: int) -> bytes:
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        if not self.is_special(token_id):
            # behind another token, since some tokenizers drop a space before the first one
            text = self._tokenizer.decode([token_id, token_id])[len(text) :]
        found = (self._part(token_id) if NO_CHARACTER in text else None) or text.encode()
        self[token_id] = found
        return found

    def _part(self, token_id: int) -> bytes | None:
        """Return the bytes of a token that is no whole characters, if its tokenizer knows them."""
        if not isinstance(self._tokenizer, SupportsVocabulary):
            return None
        if self._parts is None or token_id >= len(self._parts):
            size = max(getattr(self._tokenizer, "vocab_size", None) or 0, token_id + 1)
            try:
                self._parts = self._tokenizer.token_texts(size)
            except RequestError:  # its tokens are no pieces of text
                self._parts = [None] * size
        return self._parts[token_id]
