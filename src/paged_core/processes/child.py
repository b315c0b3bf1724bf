"""A process that this one starts, watches and ends.

It ends with this program, however that ends and whatever the child does meanwhile: the two share a
pair of sockets, the lifeline, and the system kills the child's process group when the end that
belongs to this program is closed (``F_SETSIG``, on Linux). That takes no thread and no answer of
the child, which may be stopped, or hold Python's lock. Elsewhere a thread of the child looks.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, ClassVar

import psutil

from paged_core.processes.beat import Beat
from paged_core.processes.channel import Channel

_REAPING = 5.0
"""Seconds that a process which was killed, or whose sockets are closed, may take to end."""
_PROGRAM = (
    "import json, sys; path, *orders = json.loads(sys.argv.pop()); sys.path[:] = path; "
    "from paged_core.processes.child_main import main; main(*orders)"
)
MEMORY_REMEDY = (
    "; if that was not on purpose, the system ran out of memory: lower kv_cache_memory or "
    "num_blocks"
)


class Child(ABC):
    """A process elsewhere: channels to it, its beat, and how it ended.

    It is killed when this object is collected.

    Args:
        name: of the process, for errors.
        end: kills it, however often it is called; it knows nothing of this object.
    """

    def __init__(self, name: str, end: Callable[[], None]) -> None:
        self.name = name
        self.channels: list[Channel] = []
        self.owner = os.getpid()
        self._end = weakref.finalize(self, end)

    pid: int | None
    beat: Beat
    shares_beat: ClassVar[bool] = True
    """True if the beat is memory that it shares; if not, it is told with its heartbeats."""

    def connected(self, then: Callable[[], object]) -> None:
        """Call something, on any thread, when it can be asked, or never will be."""
        then()

    def meet(self, seconds: float) -> None:
        """Wait until it can be asked: then its channels are there.

        Raises:
            TimeoutError: it was not placed in time.
            EngineError: it has ended.
        """
        assert self.channels, "it was started without any"

    @property
    def is_ours(self) -> bool:
        """Return whether this process is the one that started it, and no fork of that."""
        return self.owner == os.getpid()

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Return whether it has ended."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait for its end for so long at most; return whether it has ended."""

    @abstractmethod
    def how_it_ended(self) -> tuple[str, str]:
        """Say how it has ended, after its connection was closed; and what to do about it."""

    @abstractmethod
    def state(self) -> str:
        """Say what the system knows of it while it does not answer."""

    def kill(self) -> None:
        """End it at once, with all that it started."""
        self._end()

    def close(self, seconds: float = 0.0) -> None:
        """Give it so long to end by itself, and end it; close what leads to it."""
        if self.is_ours:
            if self._end.alive and seconds:
                self.wait(seconds)
            self.kill()
        for channel in self.channels:
            channel.close()


class LocalChild(Child):
    """A process of this machine, in a process group of its own: Ctrl-C does not reach it, and what
    it starts ends with it.

    Args:
        command: to run.
        descriptors: files that it inherits, under their numbers here.
        environ: its environment; ``None``: that of this process.
        stdin, stdout: as for ``subprocess.Popen``.
        lifeline: both ends, ours first, if the command is told of its own.
    """

    def __init__(
        self,
        command: Sequence[str],
        name: str,
        *,
        descriptors: Sequence[int] = (),
        environ: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        lifeline: tuple[socket.socket, socket.socket] | None = None,
    ) -> None:
        ours, theirs = lifeline or socket.socketpair()
        with theirs:
            try:
                process: subprocess.Popen[bytes] = subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=stdout,
                    env=environ,
                    pass_fds=[theirs.fileno(), *descriptors],
                    process_group=0,
                )
            except BaseException:
                ours.close()
                raise
            die_with(theirs, -process.pid)
        self._process, self.pid = process, process.pid
        super().__init__(f"{name} (pid {process.pid})", _Killer(process, ours))

    @property
    def stdin(self) -> IO[bytes]:
        """Pipe that it reads, if it has one."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Pipe that it writes, if it has one."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def how_it_ended(self) -> tuple[str, str]:
        self.wait(_REAPING)
        status, remedy = self._process.returncode, "; look at what it wrote to standard error"
        if status is None:
            return "closed its connection", ""
        if status >= 0:
            return f"ended with exit status {status}", remedy
        if status == -signal.SIGKILL:
            remedy = MEMORY_REMEDY
        return f"was killed by {_signal_name(-status)}", remedy

    def state(self) -> str:
        with suppress(psutil.Error, OSError):  # there may be no descriptor left to ask with
            return psutil.Process(self._process.pid).status()
        return "gone"


class PythonChild(LocalChild):
    """A process of this Python, which calls a function with what it has of this process.

    Args:
        target: ``"package.module:function"``, which is called with a
            :class:`~paged_core.processes.child_main.Parent`.
        arguments: of it, as JSON.
        num_channels: channels to it.
        cores: logical processors that it may use; empty: all of this process.
        reads: whether the target reads the first channel by itself, and answers no heartbeats.
        stdout: as for ``subprocess.Popen``.
    """

    def __init__(
        self,
        target: str,
        *arguments: Any,
        name: str,
        num_channels: int = 1,
        cores: Sequence[int] = (),
        reads: bool = False,
        stdout: int | None = None,
    ) -> None:
        pairs = [socket.socketpair() for _ in range(num_channels)]
        lifeline = socket.socketpair()
        beat = Beat()
        theirs = [end.fileno() for _, end in pairs]
        orders = [
            *(sys.path, target, arguments, theirs, lifeline[1].fileno()),
            *(beat.descriptor, list(cores), reads),
        ]
        try:
            super().__init__(
                [sys.executable, "-c", _PROGRAM, json.dumps(orders)],
                name,
                descriptors=[*theirs, beat.descriptor],
                stdout=stdout,
                lifeline=lifeline,
            )
        except BaseException:
            beat.close()
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, end in pairs:
                end.close()
        beat.detach()
        self.beat = beat
        self.channels = [Channel(ours) for ours, _ in pairs]

    def close(self, seconds: float = 0.0) -> None:
        super().close(seconds)
        self.beat.close()


class _Killer:
    """Ends a process and all of its group, once, in the process that started it alone."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: socket.socket) -> None:
        self._process, self._lifeline, self._owner = process, lifeline, os.getpid()

    def __call__(self) -> None:
        if self._owner == os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_REAPING)
        self._lifeline.close()


def die_with(lifeline: socket.socket, owner: int) -> None:
    """Have the system kill a process, or a group if negative, when the other end is closed."""
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, owner)
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
