"""Runs the steps of an engine, and what other threads and event loops ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, current_thread
from typing import Any, TypeVar

from paged_core.engine.clock import Clock, SystemClock
from paged_core.engine.engine import Engine
from paged_core.engine.outcome import StepOutcome
from paged_core.errors import EngineError, error_text
from paged_core.log import get_logger
from paged_core.request import Request
from paged_core.requests.pins import Pin
from paged_core.sequence import SequenceGroup, StopCheck

STALL_SECONDS = 1.0
"""A scheduler that plans nothing for this long although requests wait counts as stuck, unless it
says that it may wait for longer, or the end of a pinned prefix is still to come."""
IDLE_SECONDS = 0.001
"""Pause after a step in which nothing could be planned, unless something is posted."""

_LONGEST_PAUSE = 60.0
"""Where all requests are held back for longer, a step is run meanwhile, which does nothing."""

_CLOSED = "this engine is closed; make another one"


class _ClosedError(EngineError):
    """The engine was closed before it was used."""


Result = TypeVar("Result")
Listener = Callable[[SequenceGroup], None]
"""Called with a request when it is accepted, and after each step in which it gained tokens or
ended, on the thread that runs the steps. It must not wait for the engine."""

_log = get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A thread that has the engine."""

    thread: Thread
    is_call: bool
    """True if it is a call of its own, which serves the inbox too, and not the inbox alone."""


class EngineDriver:
    """Gives one thread at a time the engine, and serves the inbox that any thread may post to.

    *Turns.* Methods that act at once (:meth:`step`, :meth:`add`, :meth:`pin`, :meth:`release`,
    :meth:`reset_prefix_cache`) raise ``EngineError`` if another thread is using the engine.

    *The inbox.* What is posted (:meth:`post`, :meth:`submit`, :meth:`abort`) is done in the order
    of arrival, between steps, by the thread that is using the engine; if none is, by the one that
    posts it, at once. A future has the result.

    *The end.* After :meth:`close`, or once :meth:`run` has failed, what is still in the inbox has
    not been done, and its futures raise ``EngineError`` with the reason, as does all that is
    posted later. Requests that had been accepted are aborted, and their listeners called.

    Args:
        on_outcome: is given what came of each step, on the thread that ran it.
        between_steps: called on that thread with ``True`` before each step, and with ``False``
            after it and after what was posted while there was none.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        on_outcome: Callable[[StepOutcome], None] | None = None,
        between_steps: Callable[[bool], None] | None = None,
    ) -> None:
        self.engine = engine
        self._on_outcome = on_outcome
        self._between_steps = between_steps
        self._clock = engine.clock if isinstance(engine.clock, Clock) else SystemClock()
        self._turn: _Turn | None = None
        """The thread that has the engine."""
        self._taking = Lock()
        """Held for a moment by a thread that takes the turn."""
        self._serving = Lock()
        """Held by a thread that serves the inbox because no other has the engine."""
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._listeners: dict[SequenceGroup, Listener] = {}
        self._idle_since: float | None = None
        self._end: str | None = None
        """Why nothing more is served."""
        self._closing = False
        self._closed = Event()

    # ------------------------------------------------------------------ steps

    def step(self) -> StepOutcome:
        """Serve the inbox and run one step; pause if it could do nothing.

        Raises:
            EngineError: nothing was planned although requests wait; see ``STALL_SECONDS``.
        """
        return self.use(self._step)

    def run(self) -> None:
        """Serve the inbox and run steps, and sleep while there are none to run, until it is closed.

        If a step raises, it ends: see the class. It may be closed before it begins.

        Raises:
            EngineError, PluginError: as :meth:`step` and :meth:`Engine.step`.
        """
        with suppress(_ClosedError):
            self.use(self._run)

    def _run(self) -> None:
        try:
            while self._end is None:
                if self.engine.has_work:
                    self._step()
                else:
                    self._inbox.get()()
                    self._beat(False)
                self._serve_inbox()
        except BaseException as error:
            self._stop(error_text(error))
            raise

    def _step(self) -> StepOutcome:
        self._beat(True)
        outcome = self.engine.step()
        self._beat(False)
        if self._on_outcome is not None:
            self._on_outcome(outcome)
        if self._listeners:
            advanced = [sequence.group for sequence in outcome.advanced]
            self._tell(dict.fromkeys(advanced + outcome.finished))
        if outcome.progressed or not self.engine.has_unfinished:
            self._idle_since = None
        else:
            self._idle()
        return outcome

    def _beat(self, begins: bool) -> None:
        if self._between_steps is not None:
            self._between_steps(begins)

    def _idle(self) -> None:
        now, scheduler = self._clock(), self.engine.scheduler
        most, held_for = STALL_SECONDS + scheduler.may_wait, self.engine.held_for
        may_end = any(pin.expires_at is not None for pin in self.engine.pins)
        if self._idle_since is None or held_for or may_end:
            self._idle_since = now
        elif now - self._idle_since > most:
            self._idle_since = None
            kind = type(scheduler)
            raise EngineError(
                f"scheduler {kind.__module__}.{kind.__qualname__} has planned nothing for "
                f"{most:g} s although {len(scheduler)} requests wait; this is a fault of that "
                "scheduler; one that waits on purpose says for how long in may_wait"
            )
        pause = max(IDLE_SECONDS, min(held_for, _LONGEST_PAUSE))
        if isinstance(self._clock, SystemClock):
            with suppress(Empty):
                self._inbox.get(timeout=pause)()
        else:
            self._clock.sleep(pause)

    # ------------------------------------------------------------------ at once

    def add(self, request: Request, stop_check: StopCheck | None = None) -> SequenceGroup:
        """See :meth:`Engine.add`."""
        return self.use(lambda: self.engine.add(request, stop_check))

    def pin(
        self, tokens: Sequence[int], *, ttl: float | None = None, cache_salt: str | None = None
    ) -> Pin:
        """See :meth:`Engine.pin`."""
        return self.use(lambda: self.engine.pin(tokens, ttl=ttl, cache_salt=cache_salt))

    def release(self, pin: Pin) -> None:
        """See :meth:`Engine.release`."""
        self.use(lambda: self.engine.release(pin))

    def reset_prefix_cache(self) -> bool:
        """See :meth:`Engine.reset_prefix_cache`."""
        return self.use(self.engine.reset_prefix_cache)

    def use(self, call: Callable[[], Result]) -> Result:
        """Call something that uses the engine, after all that was posted before it.

        Raises:
            EngineError: another call has the engine, or it is closed; and what ``call`` raises.
        """
        results: list[Result] = []

        def checked_call() -> None:
            if self._end is not None:
                raise (_ClosedError if self._end is _CLOSED else EngineError)(self._end)
            results.append(call())

        try:
            while not self._take_turn(checked_call):
                if self._is_owned():
                    raise EngineError(
                        "another thread is using this engine; use it from one at a time, or post() "
                        "to it"
                    )
                with self._serving:
                    pass  # that thread serves the inbox, and leaves
        finally:
            self._serve_if_free()
        return results[0]

    def _take_turn(self, call: Callable[[], None] | None = None) -> bool:
        """Serve the inbox and ``call``, unless another turn has the engine; whether that was done.

        The turn is entered within the ``try`` that takes it out: so Ctrl-C at any place leaves none
        behind, not even in a traceback that is kept.
        """
        mine = _Turn(current_thread(), call is not None)
        try:
            with self._taking:
                if self._turn is None:
                    self._turn = mine
            if self._turn is not mine:
                return False
            self._serve_inbox()
            if call is not None:
                call()
            return True
        finally:
            if self._turn is mine:
                try:
                    if self._closing:
                        self._close()
                finally:
                    self._turn = None

    def _is_owned(self) -> bool:
        """Return whether a call has the engine, or this thread, and so will serve the inbox.

        Raises:
            EngineError: a thread of the process that this one was forked from has the engine.
        """
        turn = self._turn
        if turn is None:
            return False
        if not turn.thread.is_alive():
            raise EngineError(
                "this process was forked while a thread was using this engine; make another one "
                "in this process, or start processes with the method 'spawn'"
            )
        return turn.is_call or turn.thread is current_thread()

    # ------------------------------------------------------------------ the inbox

    def post(self, call: Callable[[Engine], Result]) -> Future[Result]:
        """Have ``call`` done with the engine between two steps; any thread may post.

        ``post(Engine.reset_prefix_cache)``, ``post(lambda engine: engine.metrics)``. It must not
        take long, since all requests wait for it, nor wait for another post, which is done after
        it. It may be cancelled until it is begun. An event loop awaits ``asyncio.wrap_future(...)``
        of the future.
        """
        future: Future[Result] = Future()
        self._inbox.put(partial(self._do, call, future))
        self._serve_if_free()
        return future

    def submit(
        self, request: Request, stop_check: StopCheck | None = None, *, listener: Listener
    ) -> Future[SequenceGroup]:
        """Post a request; ``listener`` hears of it from its acceptance to its end.

        If the listener raises, its request is aborted, and it is not called again. The future
        raises what :meth:`Engine.add` does.
        """

        def add(engine: Engine) -> SequenceGroup:
            group = engine.add(request, stop_check)
            self._listeners[group] = listener
            self._tell([group])
            return group

        return self.post(add)

    def abort(self, request_id: str) -> None:
        """Abort a request, if it has not ended, and return when that is done.

        The thread that runs the steps does not wait: it is done when the step has ended.
        """
        done = self.post(lambda engine: engine.abort(request_id))
        turn = self._turn
        if turn is None or turn.thread is not current_thread():
            error = done.exception()
            if error is not None and self._end is None:  # the end has aborted all
                raise error

    def _do(self, call: Callable[[Engine], Any], future: Future[Any]) -> None:
        """Do what was posted, or say why not."""
        if not future.set_running_or_notify_cancel():
            return
        if self._end is not None:
            future.set_exception(EngineError(self._end))
            return
        try:
            result = call(self.engine)
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise  # Ctrl-C is for this thread
        else:
            future.set_result(result)

    def _serve_inbox(self) -> None:
        for _ in range(self._inbox.qsize()):  # not what is posted meanwhile: that may never end
            self._inbox.get_nowait()()  # no other thread takes from it

    def _serve_if_free(self) -> None:
        """Serve the inbox here, unless another thread uses the engine: it will when it leaves."""
        while not self._inbox.empty() and not self._is_owned():
            with self._serving:
                self._take_turn()

    def _tell(self, groups: Iterable[SequenceGroup]) -> None:
        """Call the listeners of these requests; forget those that have ended."""
        for group in groups:
            listener = self._listeners.get(group)
            if listener is None:
                continue
            if not group.live:
                del self._listeners[group]
            try:
                listener(group)
            except Exception as error:  # noqa: BLE001 - the request's own code
                _log.warning("listener_failed", request=group.id, reason=error_text(error))
                if self._listeners.pop(group, None) is not None:
                    self.engine.abort(group.id)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Abort unfinished requests and free the memory; calling it again does nothing.

        It waits for the step of another thread, and ends :meth:`run`. Called from within a step,
        it takes effect when that has ended.
        """
        self._closing, self._end = True, self._end or _CLOSED
        self._inbox.put(lambda: None)  # wakes run()
        if (turn := self._turn) is not None:
            if turn.thread is current_thread():
                return
            if not turn.thread.is_alive():  # this process was forked meanwhile
                self._close()
        while not self._closed.is_set():
            with self._serving:
                has_closed = self._take_turn()  # its end closes the engine
            if not has_closed:
                self._closed.wait(IDLE_SECONDS)

    def _close(self) -> None:
        if self._closed.is_set():
            return
        try:
            self.engine.close()
        finally:
            self._tell(list(self._listeners))
            self._serve_inbox()
            self._closed.set()

    def _stop(self, reason: str) -> None:
        """Serve nothing more: :meth:`run` has failed."""
        self._end = self._end or f"this engine has stopped: {reason}; close it and make another one"
        for group in list(self.engine.groups):
            with suppress(Exception):  # what raised may raise again
                self.engine.abort(group.id, reason)
        self._tell(list(self._listeners))
        self._listeners.clear()
