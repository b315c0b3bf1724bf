"""A process that an executor starts: messages, heartbeats, and how it ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from contextlib import suppress
from time import monotonic

import psutil

from paged_backends.executors.channel import CLOSE, PING, PONG, Channel
from paged_backends.executors.remote_grammars import RemoteGrammars
from paged_core.errors import EngineError, ExecutorLost

_PATIENCE = 1.0
"""Seconds without an answer after which a heartbeat is asked for."""
_REAPING = 5.0
"""Seconds that a process whose socket is closed may take to end."""
_PROGRAM = (
    "import json, sys; *fds, path = json.loads(sys.argv.pop()); sys.path[:] = path; "
    "from paged_backends.executors.worker_main import main; main(*fds)"
)


class WorkerProcess:
    """Starts a Python process, which answers what it is asked in the order of the questions.

    It has a process group of its own, so that Ctrl-C does not reach it, and what it starts ends
    with it. It ends when this object is collected, and when this process ends, however that is.

    Args:
        name: of the process, for errors.
        heartbeat_timeout: seconds in which it must answer a heartbeat; one is asked for whenever
            an answer takes long.
    """

    def __init__(self, name: str, *, heartbeat_timeout: float) -> None:
        self._heartbeat_timeout = heartbeat_timeout
        ours, theirs = socket.socketpair()
        grammars, their_grammars = socket.socketpair()
        descriptors = theirs.fileno(), their_grammars.fileno()
        arguments = json.dumps([*descriptors, sys.path])
        with theirs, their_grammars:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                process_group=0,
            )
        self.pid = self._process.pid
        self.name = f"{name} (pid {self.pid})"
        self.num_asked = 0
        self._answers: dict[int, tuple[bytes, bytes]] = {}
        self._num_answered = 0
        self._channel = Channel(ours, heartbeat_timeout)
        self.grammars = RemoteGrammars(
            Channel(grammars, heartbeat_timeout), self.name, heartbeat_timeout
        )
        self._is_cut = False
        """Whether Ctrl-C came in the middle of a message."""
        self._owner = os.getpid()
        self._at_exit = weakref.finalize(self, _kill, self._process, self._owner)

    # ------------------------------------------------------------------ messages

    def ask(self, kind: bytes, content: bytes) -> int:
        """Send what will be answered; return the number of the answer.

        Raises:
            ExecutorLost: the process has ended, or does not read.
        """
        self.send(kind, content)
        self.num_asked += 1
        return self.num_asked - 1

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send what will not be answered.

        Raises:
            ExecutorLost: the process has ended, or does not read.
        """
        self._check()
        self._is_cut = True
        try:
            self._channel.send(kind, content)
        except TimeoutError:
            raise self._hung(f"has read nothing for {self._heartbeat_timeout:g} s") from None
        except OSError:
            raise self._died() from None
        self._is_cut = False

    def answer(self, number: int, doing: str, *, seconds: float | None) -> tuple[bytes, bytes]:
        """Wait for an answer; return its kind and content.

        Args:
            doing: what the process does meanwhile, for errors: ``while ...``.
            seconds: after which it counts as hung, whatever it says; ``None``: never.

        Raises:
            ExecutorLost: the process has ended, or has hung; then it is killed.
        """
        self._check()
        started, asked_at = monotonic(), float("inf")
        while number not in self._answers:
            if self._take():
                continue
            now = monotonic()
            if seconds is not None and now - started > seconds:
                raise self._hung(f"has not finished after {seconds:g} s {doing}", "step_timeout")
            if now - asked_at > self._heartbeat_timeout:
                silence = f"has answered no heartbeat for {self._heartbeat_timeout:g} s {doing}"
                raise self._hung(silence, "heartbeat_timeout")
            if self._channel.has_news(min(_PATIENCE, self._heartbeat_timeout)):  # it lives
                self._fill(doing)
                asked_at = float("inf")
            elif asked_at > now:
                self.send(PING)
                asked_at = monotonic()
        answer = self._answers[number]
        self._answers = {n: later for n, later in self._answers.items() if n > number}
        return answer

    def _fill(self, doing: str) -> None:
        self._is_cut = True
        try:
            self._channel.fill()
        except (EOFError, OSError):
            raise self._died(doing) from None
        self._is_cut = False

    def _take(self) -> bool:
        """Keep a message that has come, if one has; heartbeats are forgotten."""
        self._is_cut = True
        message = self._channel.take()
        if message is not None and message[0] != PONG:
            self._answers[self._num_answered] = message
            self._num_answered += 1
        self._is_cut = False
        return message is not None

    def _check(self) -> None:
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

    def close(self) -> None:
        """Let the process end; kill it if it does not, or is at a step no longer awaited."""
        if self._owner == os.getpid():
            if self._num_answered == self.num_asked and not self._is_cut:
                with suppress(OSError):
                    self._channel.send(CLOSE)
                    with suppress(subprocess.TimeoutExpired):
                        self._process.wait(self._heartbeat_timeout)
            self.kill()
        self.grammars.close()
        self._channel.close()

    def kill(self) -> None:
        """End the process now."""
        self._at_exit()

    def _died(self, doing: str = "") -> ExecutorLost:
        """Describe how it ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAPING)
        status = self._process.returncode
        self.kill()
        if status is None:
            how, remedy = "closed its connection", ""
        elif status < 0:
            how = f"was killed by {_signal_name(-status)}"
            remedy = "; look at what it wrote to standard error"
            if status == -signal.SIGKILL:
                remedy = (
                    "; if that was not on purpose, the system ran out of memory: lower "
                    "kv_cache_memory or num_blocks"
                )
        else:
            how = f"ended with exit status {status}"
            remedy = "; look at what it wrote to standard error"
        return ExecutorLost(f"{self.name} {how}{doing and f' {doing}'}{remedy}")

    def _hung(self, how: str, option: str = "heartbeat_timeout") -> ExecutorLost:
        """Describe a process that does not answer, and kill it."""
        state = "gone"
        with suppress(psutil.Error):
            state = psutil.Process(self.pid).status()
        self.kill()
        return ExecutorLost(
            f"{self.name} {how}, in the state {state!r}, and was killed; if it was only slow, "
            f"raise executor.{option}"
        )


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a process, and all that it started in its group."""
    if owner == os.getpid() and process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
