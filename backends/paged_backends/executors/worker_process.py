"""A worker in a process of this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import psutil

from paged_backends.executors.channel import Channel
from paged_backends.executors.worker import Worker

_REAPING = 5.0
"""Seconds that a process whose socket is closed may take to end."""
_PROGRAM = (
    "import json, os, sys; path, cores, *fds = json.loads(sys.argv.pop()); sys.path[:] = path; "
    "cores and os.sched_setaffinity(0, cores); "
    "from paged_backends.executors.worker_main import main; main(*fds)"
)


class WorkerProcess(Worker):
    """Starts a Python process.

    It has a process group of its own, so that Ctrl-C does not reach it, and what it starts ends
    with it.

    Args:
        name: of the process, for errors.
        heartbeat_timeout: see :class:`Worker`.
        cores: logical processors that it may use; empty: all of this process.
    """

    def __init__(self, name: str, *, heartbeat_timeout: float, cores: Sequence[int] = ()) -> None:
        ours, theirs = socket.socketpair()
        grammars, their_grammars = socket.socketpair()
        descriptors = theirs.fileno(), their_grammars.fileno()
        arguments = json.dumps([sys.path, list(cores), *descriptors])
        with theirs, their_grammars:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                process_group=0,
            )
        self.pid = self._process.pid
        super().__init__(
            f"{name} (pid {self.pid})",
            Channel(ours, heartbeat_timeout),
            Channel(grammars, heartbeat_timeout),
            heartbeat_timeout,
            partial(_kill, self._process, os.getpid()),
        )

    def _wait(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def _ending(self) -> tuple[str, str]:
        self._wait(_REAPING)
        status, remedy = self._process.returncode, "; look at what it wrote to standard error"
        if status is None:
            return "closed its connection", ""
        if status >= 0:
            return f"ended with exit status {status}", remedy
        if status == -signal.SIGKILL:
            remedy = (
                "; if that was not on purpose, the system ran out of memory: lower "
                "kv_cache_memory or num_blocks"
            )
        return f"was killed by {_signal_name(-status)}", remedy

    def _state(self) -> str:
        with suppress(psutil.Error):
            return psutil.Process(self.pid).status()
        return "gone"


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
