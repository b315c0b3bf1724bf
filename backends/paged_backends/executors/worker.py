"""A worker that an executor starts: messages to and from it, heartbeats, and how it ended."""

from __future__ import annotations

import os
import select
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from paged_backends.executors.channel import CLOSE, ERROR, PING, PONG, Channel
from paged_backends.executors.remote_grammars import RemoteGrammars
from paged_core.errors import EngineError, ExecutorLost

_PATIENCE = 1.0
"""Seconds without an answer after which a heartbeat is asked for."""
_GRACE = 5.0
"""Seconds that the others have to answer once one worker has answered with an error: it may have
left them waiting for it."""


class Worker(ABC):
    """Runs :mod:`worker_main` elsewhere; answers what it is asked in the order of the questions.

    It ends when this object is collected, and when this process ends, however that is.

    Args:
        name: of the worker, for errors.
        channel: to it.
        grammars: to it, for forms.
        heartbeat_timeout: seconds in which it must answer a heartbeat; one is asked for whenever
            an answer takes long.
        end: ends it at once, however often it is called; it knows nothing of this object.
    """

    def __init__(
        self,
        name: str,
        channel: Channel,
        grammars: Channel,
        heartbeat_timeout: float,
        end: Callable[[], None],
    ) -> None:
        self.name = name
        self.num_asked = 0
        self.grammars = RemoteGrammars(grammars, name, heartbeat_timeout)
        self.channel = channel
        self._heartbeat_timeout = heartbeat_timeout
        self._answers: dict[int, tuple[bytes, bytes]] = {}
        self._num_answered = 0
        self._heard = 0.0
        self._pinged: float | None = None
        self._is_cut = False
        """Whether Ctrl-C came in the middle of a message."""
        self._owner = os.getpid()
        self._at_exit = weakref.finalize(self, end)

    @abstractmethod
    def _wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it has ended."""

    @abstractmethod
    def _ending(self) -> tuple[str, str]:
        """Say how it has ended, after its connection was closed, and what to do."""

    @abstractmethod
    def _state(self) -> str:
        """Say what the system knows of it while it does not answer."""

    # ------------------------------------------------------------------ messages

    def ask(self, kind: bytes, content: bytes) -> int:
        """Send what will be answered; return the number of the answer.

        Raises:
            ExecutorLost: the worker has ended, or does not read.
        """
        self.send(kind, content)
        self.num_asked += 1
        return self.num_asked - 1

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send what will not be answered.

        Raises:
            ExecutorLost: the worker has ended, or does not read.
        """
        self.check()
        self._is_cut = True
        try:
            self.channel.send(kind, content)
        except TimeoutError:
            raise self.hung(f"has read nothing for {self._heartbeat_timeout:g} s") from None
        except OSError:
            raise self._died() from None
        self._is_cut = False

    def await_answer(self) -> None:
        """Begin to count its silence."""
        self.check()
        self._heard, self._pinged = monotonic(), None

    def has_answered(self, number: int) -> bool:
        """Take in the messages that have come whole; return whether this answer is among them."""
        while number not in self._answers:
            self._is_cut = True
            message = self.channel.take()
            if message is not None and message[0] != PONG:
                self._answers[self._num_answered] = message
                self._num_answered += 1
            self._is_cut = False
            if message is None:
                return False
        return True

    def has_failed(self, number: int) -> bool:
        """Whether an answer that has come is an error."""
        return self._answers[number][0] == ERROR

    def take_answer(self, number: int) -> tuple[bytes, bytes]:
        """Return kind and content of an answer that has come; forget it, and those before it."""
        answer = self._answers[number]
        self._answers = {n: later for n, later in self._answers.items() if n > number}
        return answer

    def read(self, doing: str) -> None:
        """Take in what has come.

        Raises:
            ExecutorLost: the worker has ended, ``doing`` what it was asked to.
        """
        self._is_cut = True
        try:
            self.channel.fill()
        except (EOFError, OSError):
            raise self._died(doing) from None
        self._is_cut = False
        self._heard, self._pinged = monotonic(), None

    def watch(self, doing: str) -> None:
        """Ask for a heartbeat if there was none for long.

        Raises:
            ExecutorLost: it has answered none in time, and is ended.
        """
        now, timeout = monotonic(), self._heartbeat_timeout
        if self._pinged is None:
            if now - self._heard > self.patience / 2:
                self.send(PING)
                self._pinged = monotonic()
        elif now - self._pinged > timeout:
            raise self.hung(f"has answered no heartbeat for {timeout:g} s {doing}")

    @property
    def patience(self) -> float:
        """Seconds to wait for news before a heartbeat is asked for."""
        return min(_PATIENCE, self._heartbeat_timeout)

    def check(self) -> None:
        """Raise if nothing can be asked any more."""
        if self._owner != os.getpid():
            raise EngineError(
                f"{self.name} serves the process that started it, and this one was forked from "
                "that; make another engine here, or start processes with the method 'spawn'"
            )
        if self._is_cut:
            self.kill()
            raise ExecutorLost(
                f"{self.name} was ended, because Ctrl-C had cut off a message to or from it"
            )

    # ------------------------------------------------------------------ the end

    def ask_to_end(self) -> None:
        """Let it end by itself, if it is not at a step that is no longer awaited."""
        if self._owner != os.getpid():
            return
        if self._num_answered == self.num_asked and not self._is_cut:
            with suppress(OSError):
                self.channel.send(CLOSE)
                return
        self.kill()

    def close(self) -> None:
        """Wait until it has ended; kill it if it does not. It was asked to end."""
        if self._owner == os.getpid():
            if self._at_exit.alive:
                self._wait(self._heartbeat_timeout)
            self.kill()
        self.grammars.close()
        self.channel.close()

    def kill(self) -> None:
        """End it now."""
        self._at_exit()

    def hung(self, how: str, option: str = "heartbeat_timeout") -> ExecutorLost:
        """Describe that it does not answer, and kill it."""
        state = self._state()
        self.kill()
        return ExecutorLost(
            f"{self.name} {how}, in the state {state!r}, and was killed; if it was only slow, "
            f"raise executor.{option}"
        )

    def _died(self, doing: str = "") -> ExecutorLost:
        how, remedy = self._ending()
        self.kill()
        return ExecutorLost(f"{self.name} {how}{doing and f' {doing}'}{remedy}")


def wait_for(
    workers: Sequence[Worker], number: int, doing: str, *, seconds: float | None
) -> list[tuple[bytes, bytes] | None]:
    """Wait for an answer of each worker; return their kinds and contents.

    If one answers with an error, the others have a short time, and those that do not answer are
    ``None``.

    Args:
        doing: what they do meanwhile, for errors: ``while ...``.
        seconds: after which one counts as hung, whatever it says; ``None``: never.

    Raises:
        ExecutorLost: a worker has ended, or has hung; then it is killed.
    """
    started, limit = monotonic(), float("inf")
    patience = min(worker.patience for worker in workers)
    news, by_file = select.poll(), {}
    for worker in workers:
        worker.await_answer()
        by_file[worker.channel.fileno()] = worker
        news.register(worker.channel.fileno(), select.POLLIN)
    while waiting := [worker for worker in workers if not worker.has_answered(number)]:
        for worker in [one for one in by_file.values() if one not in waiting]:
            news.unregister(worker.channel.fileno())
            del by_file[worker.channel.fileno()]
            if worker.has_failed(number):
                limit = min(limit, monotonic() + _GRACE)
        now = monotonic()
        if seconds is not None and now - started > seconds:
            raise waiting[0].hung(f"has not finished after {seconds:g} s {doing}", "step_timeout")
        if now > limit:
            break
        for worker in waiting:
            worker.watch(doing)
        for file, _ in news.poll(1000 * max(0.0, min(patience, limit - now))):
            by_file[file].read(doing)
    return [
        worker.take_answer(number) if worker.has_answered(number) else None for worker in workers
    ]
