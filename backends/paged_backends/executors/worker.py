"""A worker that an executor starts: what it was asked and has answered, and how it was lost."""

from __future__ import annotations

from contextlib import suppress

from paged_backends.executors.remote_grammars import RemoteGrammars
from paged_core.errors import EngineError, ExecutorLost
from paged_core.processes.channel import CLOSE, PONG, Heartbeat
from paged_core.processes.child import Child


class Worker:
    """Runs :mod:`worker_main` in a child; answers what it is asked in the order of the questions.

    Args:
        child: connected.
        heartbeat_timeout: seconds in which it must answer a heartbeat; one is asked for whenever
            an answer takes long.
    """

    def __init__(self, child: Child, heartbeat_timeout: float) -> None:
        self.child, self.name, self.pid = child, child.name, child.pid
        self.channel, grammars = child.channels
        self.heartbeat = Heartbeat(self.channel, heartbeat_timeout)
        self.grammars = RemoteGrammars(grammars, child.name, heartbeat_timeout)
        self.num_asked = 0
        self._num_answered = 0
        self._answers: dict[int, tuple[bytes, bytes]] = {}

    # ------------------------------------------------------------------ messages

    def ask(self, kind: bytes, content: bytes) -> int:
        """Send what will be answered; return the number of the answer.

        Raises:
            ExecutorLost: the worker has ended.
        """
        self.send(kind, content)
        self.num_asked += 1
        return self.num_asked - 1

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send what will not be answered.

        Raises:
            ExecutorLost: the worker has ended.
        """
        if not self.child.is_ours:
            raise EngineError(
                f"{self.name} serves the process that started it, and this one was forked from "
                "that; make another engine here, or start processes with the method 'spawn'"
            )
        try:
            self.channel.send(kind, content)
        except OSError:
            raise self._died() from None

    def read(self, doing: str) -> None:
        """Take in what has come.

        Raises:
            ExecutorLost: the worker has ended, ``doing`` what it was asked to.
        """
        try:
            self.channel.fill()
        except (EOFError, OSError):
            raise self._died(doing) from None
        self.heartbeat.heard()
        while (message := self.channel.take()) is not None:
            if message[0] != PONG:
                self._answers[self._num_answered] = message
                self._num_answered += 1

    def answer(self, number: int) -> tuple[bytes, bytes] | None:
        """Return kind and content of an answer, if it has come."""
        return self._answers.get(number)

    def forget(self, number: int) -> None:
        """Forget the answers up to one."""
        self._answers = {n: later for n, later in self._answers.items() if n > number}

    def watch(self, doing: str) -> None:
        """Ask for a heartbeat if there was none for long.

        Raises:
            ExecutorLost: it has answered none in time, and is ended; or it has ended.
        """
        try:
            is_missed = self.heartbeat.is_missed()
        except OSError:
            raise self._died(doing) from None
        if is_missed:
            timeout = self.heartbeat.timeout
            raise self.hung(f"has answered no heartbeat for {timeout:g} s {doing}")

    # ------------------------------------------------------------------ the end

    def ask_to_end(self) -> None:
        """Let it end by itself, if it is not at a step that is no longer awaited."""
        if self.child.is_ours:
            if self._num_answered == self.num_asked:
                with suppress(OSError):
                    self.channel.send(CLOSE)
                    return
            self.child.kill()

    def close(self) -> None:
        """Wait until it has ended; kill it if it does not. It was asked to end."""
        if self.child.is_ours:
            self.grammars.close()
        self.child.close(self.heartbeat.timeout)

    def hung(self, how: str, option: str = "heartbeat_timeout") -> ExecutorLost:
        """Describe that it does not answer, and kill it."""
        state = self.child.state()
        self.child.kill()
        return ExecutorLost(
            f"{self.name} {how}, in the state {state!r}, and was killed; if it was only slow, "
            f"raise executor.{option}"
        )

    def _died(self, doing: str = "") -> ExecutorLost:
        how, remedy = self.child.how_it_ended()
        self.child.kill()
        return ExecutorLost(f"{self.name} {how}{doing and f' {doing}'}{remedy}")
