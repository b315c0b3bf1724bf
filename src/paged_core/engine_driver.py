"""Runs the steps of an engine for its callers: ``LLM``, a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from paged_core.clock import Clock, SystemClock
from paged_core.engine import Engine
from paged_core.errors import EngineError
from paged_core.request import Request
from paged_core.requests.pins import Pin
from paged_core.sequence import SequenceGroup, StopCheck
from paged_core.step_outcome import StepOutcome

STALL_SECONDS = 30.0
"""A scheduler that plans nothing for this long although requests wait counts as stuck."""
IDLE_SECONDS = 0.001
"""Pause after a step in which nothing could be planned."""


class EngineDriver:
    """Serializes access to the engine, idles while nothing can be planned, reports stalls.

    Methods raise ``EngineError`` if another thread is using the engine or it is closed, except
    :meth:`abort`, which waits for its turn, and :meth:`close`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._clock = engine.clock if isinstance(engine.clock, Clock) else SystemClock()
        self._lock = Lock()
        self._process = os.getpid()  # in which the lock was last acquired
        self._idle_since: float | None = None
        self._closed = False

    def step(self) -> StepOutcome:
        """Run one step; pause if it could do nothing.

        Raises:
            EngineError: nothing was planned for ``STALL_SECONDS`` although requests wait.
        """
        with self.turn():
            outcome = self.engine.step()
            if outcome.progressed or not self.engine.has_unfinished:
                self._idle_since = None
            else:
                self._idle()
        return outcome

    def add(self, request: Request, stop_check: StopCheck | None = None) -> SequenceGroup:
        """See :meth:`Engine.add`."""
        with self.turn():
            return self.engine.add(request, stop_check)

    def abort(self, request_id: str) -> None:
        """See :meth:`Engine.abort`."""
        with self.turn(wait=True):
            self.engine.abort(request_id)

    def pin(
        self, tokens: Sequence[int], *, ttl: float | None = None, cache_salt: str | None = None
    ) -> Pin:
        """See :meth:`Engine.pin`."""
        with self.turn():
            return self.engine.pin(tokens, ttl=ttl, cache_salt=cache_salt)

    def release(self, pin: Pin) -> None:
        """See :meth:`Engine.release`."""
        with self.turn():
            self.engine.release(pin)

    def reset_prefix_cache(self) -> bool:
        """See :meth:`Engine.reset_prefix_cache`."""
        with self.turn():
            return self.engine.reset_prefix_cache()

    def close(self) -> None:
        """Abort unfinished requests and free the memory; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self.engine.close()

    @contextmanager
    def turn(self, *, wait: bool = False) -> Iterator[None]:
        """Keep other threads from using the engine; ``wait`` for them, also if it is closed."""
        is_ours = self._process == os.getpid()  # else a thread of the parent may hold the lock
        if not self._lock.acquire(blocking=wait and is_ours):
            raise EngineError(
                "another thread is using this engine; use it from one at a time"
                if is_ours
                else "this process was forked while a thread was using this engine; make another "
                "one in this process, or start processes with the method 'spawn'"
            )
        self._process = os.getpid()
        try:
            if self._closed and not wait:
                raise EngineError("this engine is closed; make another one")
            yield
        finally:
            self._lock.release()

    def _idle(self) -> None:
        now = self._clock()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > STALL_SECONDS:
            self._idle_since = None
            kind = type(self.engine.scheduler)
            raise EngineError(
                f"scheduler {kind.__module__}.{kind.__qualname__} has planned nothing for "
                f"{STALL_SECONDS:.0f} s although {len(self.engine.scheduler)} requests wait; this "
                "is a fault of that scheduler"
            )
        self._clock.sleep(IDLE_SECONDS)
