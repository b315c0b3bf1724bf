"""The line between front ends and engines: nothing above it knows how many engines there are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from paged_core.engine.outcome import EngineMetrics
from paged_core.request import Request
from paged_core.text.front_end import FrontEnd
from paged_core.text.outputs import OutputDelta, RequestOutput


class ClientState(StrEnum):
    """States of an engine; requests are taken in one of them."""

    STARTING = "starting"
    """The engine loads its model; no requests are taken yet."""
    READY = "ready"
    RESTARTING = "restarting"
    """The engine was lost and is being started again; new requests are refused."""
    DRAINING = "draining"
    """Accepted requests are finished, and no more are taken."""
    FAILED = "failed"
    """The engine cannot be started, or is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """State of the engine, as far as it is known without asking it."""

    state: ClientState
    reason: str | None = None
    """Why it is not ready."""
    num_unfinished: int = 0
    """Requests that were accepted and have not ended."""
    num_waiting: int = 0
    """Unfinished requests that have no token yet."""
    num_waiting_tokens: int = 0
    """Tokens of the prompts of these."""
    silent_for: float = 0.0
    """Seconds since the engine last showed that it lives; of several, the longest."""
    num_engines: int = 1
    """Engines behind the client, whether they are ready or not."""


class OutputStream(ABC, AsyncIterator[OutputDelta]):
    """Gains of one request, as they come; the stream ends when the request has ended.

    What was gained between two reads comes as one delta for each sequence.
    Closing it before its end, or leaving a ``with`` block, aborts the request.

    Iterating raises ``RequestError`` if the engine refuses the request (``AdmissionRefused``, if
    its admission does), and ``EngineLost`` if it ended after part of the answer was read.
    """

    request: Request
    prompt: str | None
    """The text of the prompt, if it was given as text."""
    num_cached_tokens: int | None
    """Prompt tokens that the cache served; ``None``: it has not been admitted yet."""

    @abstractmethod
    async def __anext__(self) -> OutputDelta:
        """Return what one sequence gained next."""

    @abstractmethod
    def take(self) -> list[OutputDelta]:
        """Return what it has gained since it was last read, if anything, without waiting.

        Raises: as iterating.
        """

    @abstractmethod
    def listen(self, call: Callable[[], None], /) -> None:
        """Have something called, in the client's event loop, when there is something to take.

        It takes the place of the iterator's own, must not raise nor close the stream, and is called
        at once, since there may be something already.
        """

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Return whether nothing more will come than what can be taken now."""

    @abstractmethod
    async def wait(self) -> RequestOutput:
        """Return all that it gains, once it has ended.

        Nothing counts as read before, so that it may be served again if the engine ends.

        Raises: as iterating.
        """

    @abstractmethod
    def output(self) -> RequestOutput:
        """Return all that it has gained so far."""

    @abstractmethod
    def close(self) -> None:
        """Abort the request, unless it has ended; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EngineClient(ABC):
    """Serves requests on an engine that is elsewhere: in a thread, in a process, or on several.

    It belongs to the event loop in which it was started, and is used there alone.
    """

    front_end: FrontEnd
    """Makes requests of prompts; it is there once the client has started."""
    clock: Callable[[], float]
    """Seconds; arrivals and deadlines of requests are measured on it."""

    @abstractmethod
    async def start(self) -> None:
        """Start the engine, and return when it takes requests; calling it again does nothing.

        Raises:
            SettingsError, CheckpointError, UnsupportedModel, PluginError: as ``LLM(...)``.
            EngineError: it ended before it was ready.
        """

    @abstractmethod
    def generate(self, request: Request, /, *, prompt: str | None = None) -> OutputStream:
        """Add a request; its outputs are read from what this returns.

        Args:
            prompt: the text of the prompt, which outputs repeat.

        Raises:
            RequestError: the id is in use, or a parameter cannot be sent to the engine.
            EngineError: no requests are taken; :meth:`health` says why.
        """

    @abstractmethod
    def abort(self, request_id: str, /) -> None:
        """Abort a request; one that is unknown, or has ended, is left alone."""

    @abstractmethod
    async def metrics(self) -> EngineMetrics:
        """Return what the engine has counted."""

    @abstractmethod
    async def report(self, observer: str, /, since: int = 0) -> Any:
        """Return what an observer of the engine reports, as plain data.

        Args:
            observer: its name in the settings; it has the method ``report``.
            since: what the observer may take as the number from which on there is news.

        Raises:
            RequestError: the engine has no such observer.
        """

    @abstractmethod
    async def pin(
        self, tokens: Sequence[int], /, *, ttl: float | None = None, cache_salt: str | None = None
    ) -> str:
        """Keep a prefix in the cache until :meth:`release`; return the id of the pin.

        Raises:
            RequestError: as ``LLM.pin_prefix``.
        """

    @abstractmethod
    async def release(self, pin: str, /) -> None:
        """Let a pinned prefix be evicted."""

    @abstractmethod
    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; ``False``: requests or pins hold some, nothing is done."""

    @abstractmethod
    def health(self) -> ClientHealth:
        """Return how the engine is; it is not asked."""

    @abstractmethod
    async def drain(self) -> None:
        """Take no more requests, and return when those that were accepted have ended."""

    @abstractmethod
    async def close(self) -> None:
        """Abort what has not ended and end the engine; calling it again does nothing."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
