"""An engine in its own process: the parent's side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from time import monotonic, perf_counter, sleep
from typing import Any, Self

import psutil

from paged_core.errors import EngineError
from paged_plugins.bench.peer_python import PeerPython
from paged_plugins.bench.peers.peer_engine import Task
from paged_plugins.bench.peers.table import Peer
from paged_plugins.bench.workloads import Item

_WINDOW = 0.05
_IDLE_SHARE = 0.2
"""A process is idle if it uses at most this share of a core during ``_WINDOW`` seconds."""


class PeerProcess:
    """One engine; leaving its ``with`` ends the process.

    Args:
        python: the interpreter that runs it; ``None``: ours.
        name: what tables call it; ``None``: as the peer is called.

    Raises:
        EngineError: it cannot load the model, or dies; its own messages are on standard error.
    """

    def __init__(
        self,
        peer: Peer,
        task: Task,
        python: PeerPython | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or peer.name
        python = python or PeerPython()
        variables = {"OMP_NUM_THREADS": str(task.threads)}
        started = perf_counter()
        self._process = subprocess.Popen(
            python.command(peer),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=python.environ(variables | peer.kind.environment(task, python.prefix)),
            start_new_session=True,  # Ctrl-C is handled on this side, and ends it
        )
        try:
            ready = self._ask(asdict(task))
        except BaseException as error:
            self.__exit__(type(error))
            raise
        self.version: str = ready["version"]
        self.vocab_size: int | None = ready["vocab_size"]
        self.cache_written: bool | None = ready["cache_written"]
        self.start_seconds = perf_counter() - started

    def run(self, items: Sequence[Item]) -> dict[str, Any]:
        """Complete ``items``; return ``elapsed``, ``peak_memory`` and ``outputs``."""
        return self._ask([asdict(item) for item in items])

    def settle(self, seconds: float = 2.0) -> bool:
        """Wait until the process is idle, for at most ``seconds``; return whether it is.

        Threads of an engine may spin for a while after their last work, and would slow down the
        engine that runs next.
        """
        end = monotonic() + seconds
        used = self._processor_seconds()
        while True:
            sleep(_WINDOW)
            before, used = used, self._processor_seconds()
            if used - before <= _IDLE_SHARE * _WINDOW:
                return True
            if monotonic() > end:
                return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            if kind is None:  # else it may be in the middle of a run
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(10)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()

    def _processor_seconds(self) -> float:
        """Return the processor time of the process and its children that are alive."""
        total = 0.0
        try:
            process = psutil.Process(self._process.pid)
            for one in [process, *process.children(recursive=True)]:
                times = one.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:
            return total
        return total

    def _ask(self, question: Any) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # its last reply is read below
        line = stdout.readline()
        if not line:
            raise EngineError(
                f"{self.name} ended with status {self._process.wait()} and without an answer; "
                "its messages are on standard error"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.name}: {answer['error']}")
        return answer
