"""Forms that are compiled in the process of an executor, by messages beside those of its steps."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import Lock, Thread

from paged_core.errors import EngineError, ExecutorLost, PagedCoreError, RequestError
from paged_core.interfaces.executor import Executor, SupportsGrammar
from paged_core.processes.channel import ANSWER, PING, PONG, Channel, Heartbeat
from paged_core.structured_outputs import StructuredOutputs

COMPILE = b"G"
"""To the process: compile a form."""


class RemoteGrammars:
    """Asks for forms to be compiled; any thread may.

    Args:
        channel: to :func:`serve_grammars`.
        name: of the process, for errors.
        heartbeat_timeout: seconds in which it must answer a heartbeat.
    """

    def __init__(self, channel: Channel, name: str, heartbeat_timeout: float) -> None:
        self._channel = channel
        self._name = name
        self._heartbeat = Heartbeat(channel, heartbeat_timeout)
        self._owner = os.getpid()
        self._lock = Lock()
        self._asked: dict[int, Future[None]] = {}
        self._num_asked = 0
        self._reader: Thread | None = None
        self._end: str | None = None
        """Why nothing more is answered."""

    def compile(self, form: StructuredOutputs) -> Future[None]:
        """See :class:`~paged_core.interfaces.executor.SupportsGrammar`."""
        if self._owner != os.getpid():
            raise EngineError(f"{self._name} serves the process that started it, not this one")
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            number, self._num_asked = self._num_asked, self._num_asked + 1
            if self._end is not None:
                future.set_exception(ExecutorLost(self._end))
                return future
            self._asked[number] = future
            if self._reader is None:
                self._reader = Thread(target=self._read, daemon=True)
                self._reader.start()
        try:
            self._channel.send(COMPILE, pickle.dumps((number, form)))
        except OSError:
            self._fail(f"{self._name} has ended")
        return future

    def close(self) -> None:
        """Answer what is asked with an error, and end."""
        self._fail(f"{self._name} was ended")
        self._channel.shut()
        if self._reader is not None:
            self._reader.join()

    def _read(self) -> None:
        heartbeat = self._heartbeat
        try:
            while self._end is None:
                while (message := self._channel.take()) is not None:
                    self._answer(*message)
                if self._channel.has_news(heartbeat.patience):
                    self._channel.fill()
                    heartbeat.heard()
                elif not self._asked:
                    heartbeat.heard()
                elif heartbeat.is_missed():
                    self._fail(f"{self._name} has answered no heartbeat; it hangs")
        except (EOFError, OSError):
            self._fail(f"{self._name} has ended")

    def _answer(self, kind: bytes, content: bytes) -> None:
        if kind != ANSWER:
            return
        number, refusal = pickle.loads(content)
        with self._lock:
            future = self._asked.pop(number, None)
        if future is not None and refusal is None:
            future.set_result(None)
        elif future is not None:
            future.set_exception(RequestError(refusal))

    def _fail(self, reason: str) -> None:
        with self._lock:
            self._end = self._end or reason
            asked, self._asked = self._asked, {}
        for future in asked.values():
            future.set_exception(ExecutorLost(reason))


def serve_grammars(channel: Channel, executor: Executor) -> None:
    """Have an executor compile what comes, until the other end is closed."""
    with suppress(EOFError, OSError):  # at the end of the process
        while True:
            kind, content = channel.receive()
            if kind == PING:
                channel.send(PONG)
                continue
            number, form = pickle.loads(content)
            assert isinstance(executor, SupportsGrammar)
            executor.compile_grammar(form).add_done_callback(partial(_send, channel, number))


def _send(channel: Channel, number: int, future: Future[None]) -> None:
    error = future.exception()
    refusal = None if error is None else str(error)
    assert error is None or isinstance(error, PagedCoreError)
    with suppress(OSError):  # the executor has been closed
        channel.send(ANSWER, pickle.dumps((number, refusal)))
