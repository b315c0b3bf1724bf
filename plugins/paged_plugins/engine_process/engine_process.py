"""The engine's process as the one that starts it sees it: sockets, beat, and how it ended."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import psutil
import zmq

from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.engine_process import wire
from paged_plugins.engine_process.beat import Pulse, SharedBeat

_LONGEST_FOLDER = 90
"""Bytes of the name of a folder of sockets; the system allows 107 for the whole name of one."""
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from paged_plugins.engine_process.main import main; main()"
)


class EngineProcess:
    """One process, the sockets to it, and how it ended. It is killed when this is collected."""

    def __init__(self, settings: EngineSettings, registry: Registry, log_level: str | None) -> None:
        self.last_words = ""
        """Why it ended, as it said."""
        self._loop = asyncio.get_running_loop()
        self._folder = _make_folder()
        self._beat = SharedBeat()
        self._beat.write(Pulse(0, monotonic(), 0.0, in_step=False))
        self._context: zmq.Context[Any] = zmq.Context()
        self._out, self._in = self._bind(zmq.PUSH, "in"), self._bind(zmq.PULL, "out")
        self._readable = int(self._in.getsockopt(zmq.FD))
        self._listener: Callable[[], None] = lambda: None
        self._control, theirs = socket.socketpair()
        with theirs:
            orders = {
                "parent": os.getpid(),
                "control": theirs.fileno(),
                "beat": self._beat.descriptor,
                "folder": self._folder,
                "settings": settings.model_dump(mode="json"),
                "blocked": [each.name for each in registry.plugins if each.status == "blocked"],
                "log_level": log_level,
            }
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else None,
                pass_fds=[theirs.fileno(), self._beat.descriptor],
                process_group=0,
            )
        self.pid = self._process.pid
        self._kill = weakref.finalize(
            self, _end, self._process, os.getpid(), self._folder, self._context
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(msgspec.json.encode(orders))
        self._has_ended = asyncio.Event()
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._has_ended.set)

    def _bind(self, kind: int, name: str) -> zmq.Socket[bytes]:
        bound: zmq.Socket[bytes] = self._context.socket(kind)
        bound.setsockopt(zmq.MAXMSGSIZE, wire.MOST)
        bound.setsockopt(zmq.SNDHWM, 0)  # the server bounds requests before they come here
        bound.setsockopt(zmq.RCVHWM, 0)
        bound.setsockopt(zmq.LINGER, 0)
        bound.bind(f"ipc://{self._folder}/{name}")
        return bound

    # ------------------------------------------------------------------ messages

    def send(self, message: bytes) -> None:
        with suppress(zmq.Again):  # the process does not read, which the watch sees
            self._out.send(message, zmq.NOBLOCK)

    def messages(self) -> Iterator[wire.FromEngine]:
        """Yield what has come."""
        while not self._in.closed:
            try:
                encoded = self._in.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield wire.decode_from_engine(encoded)

    def listen(self, take: Callable[[wire.FromEngine], None]) -> None:
        """Call ``take`` with each message that comes from now on."""

        def read() -> None:
            for message in self.messages():
                take(message)

        self._listener = read
        self._loop.add_reader(self._readable, read)
        self._loop.call_soon(read)  # what came before tells of itself no more

    def take_rest(self) -> None:
        """Take what it said before it ended."""
        self._listener()

    def forget_folder(self) -> None:
        """Both sides are connected: the names of the sockets are not needed any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------ how it is

    def pulse(self) -> Pulse:
        return self._beat.read()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    async def ended(self, seconds: float) -> None:
        """Return when it has ended, or after so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_ended.wait(), seconds)
        if self._has_ended.is_set() and not self.has_ended:
            await asyncio.sleep(0.01)  # its sockets are closed, and it is about to end

    def how_it_ended(self) -> str:
        status = self._process.returncode
        if self.last_words:
            return f"has stopped: {self.last_words}"
        if status == -signal.SIGKILL:
            return (
                f"(pid {self.pid}) was killed by SIGKILL; if that was not on purpose, the system "
                "ran out of memory: lower kv_cache_memory or num_blocks"
            )
        if status is not None and status < 0:
            return f"(pid {self.pid}) was killed by signal {-status}; see what it wrote to its log"
        return f"(pid {self.pid}) ended with exit status {status}; see what it wrote to its log"

    def how_it_hangs(self) -> str:
        pulse, state = self.pulse(), "gone"
        with suppress(psutil.Error):
            state = psutil.Process(self.pid).status()
        doing = "in a step" if pulse.in_step else "between steps"
        return (
            f"the engine's process (pid {self.pid}), in the state {state!r}, has shown no life for "
            f"{monotonic() - pulse.at:.0f} s {doing}, and was killed"
        )

    def kill(self) -> None:
        """End the process, and close all that leads to it."""
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
            if not self._in.closed:
                self._loop.remove_reader(self._readable)
            self._control.close()
            self._in.close()
            self._out.close()
            self._kill()
            self._beat.close()


def _end(
    process: subprocess.Popen[bytes], owner: int, folder: str, context: zmq.Context[Any]
) -> None:
    """Kill a process and what it started; also when the interpreter ends."""
    if owner != os.getpid():
        return
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    context.destroy(linger=0)


def _make_folder() -> str:
    """Make a folder for sockets that is this user's alone."""
    folder = tempfile.mkdtemp(prefix="paged-core-")
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        Path(folder).rmdir()
        folder = tempfile.mkdtemp(prefix="paged-core-", dir="/tmp")
    return folder


def _has_descriptor(stream: Any) -> bool:
    try:
        return bool(stream.fileno() >= 0)
    except (AttributeError, OSError, ValueError):
        return False
