"""Main function of a child: it finds its channels, and calls what it was started for."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from threading import Thread
from typing import Any

from paged_core.processes.beat import Beat
from paged_core.processes.channel import PING, PONG, Channel
from paged_core.processes.child import die_with

_FLUSHING = 5.0
"""Seconds that the other end may take to read the last messages."""


class Parent:
    """The process that started this one, as this one sees it.

    A thread answers heartbeats on the first channel, whatever the other threads are at or import,
    and ends this process when the other end is closed.

    Args:
        reads: whether the target reads that channel by itself; then nothing answers heartbeats.
    """

    def __init__(
        self, arguments: Sequence[Any], channels: Sequence[Channel], beat: Beat, *, reads: bool
    ) -> None:
        self.arguments, self.channels, self.beat = arguments, channels, beat
        self.messages: SimpleQueue[tuple[bytes, bytes]] = SimpleQueue()
        """All else that comes on the first channel."""
        self.wake: Callable[[], None] = lambda: None
        """Is called for each heartbeat, to have a loop show that it lives."""
        if not reads:
            Thread(target=self._hear, name="paged_core heartbeats", daemon=True).start()

    def _hear(self) -> None:
        channel = self.channels[0]
        with suppress(EOFError, OSError):
            while True:
                kind, content = channel.receive()
                if kind == PING:
                    channel.send(PONG, self.beat.told())
                    self.wake()
                else:
                    self.messages.put((kind, content))
        os._exit(1)  # the process that started this one is gone: nothing is wanted any more


def main(
    target: str,
    arguments: Sequence[Any],
    channels: Sequence[int],
    lifeline: int,
    beat: int,
    cores: Sequence[int],
    reads: bool,
) -> None:
    """Call the target; the numbers are descriptors that this process inherits."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the process that started this one decides
        signal.signal(number, signal.SIG_IGN)
    if cores:
        os.sched_setaffinity(0, cores)
    line = socket.socket(fileno=lifeline)
    Thread(target=_end_with, args=(line,), name="paged_core lifeline", daemon=True).start()
    ends = [Channel(socket.socket(fileno=number)) for number in channels]
    status = 1
    try:
        parent = Parent(arguments, ends, Beat(beat), reads=reads)
        imported(target)(parent)
        status = 0
    except Exception:  # noqa: BLE001 - what no target has told the other end of
        traceback.print_exc()
    for end in ends:
        end.flush(_FLUSHING)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)  # threads of libraries are not waited for


def imported(target: str) -> Callable[[Parent], None]:
    """Return the function that a target names."""
    module, _, function = target.partition(":")
    found: Callable[[Parent], None] = getattr(import_module(module), function)
    return found


def _end_with(lifeline: socket.socket) -> None:
    """End this process and what it started when the one that started it has ended.

    The system does so by itself, where it can: this finds an end before that was set up.
    """
    _await_end(lifeline)
    os.killpg(0, signal.SIGKILL)


def _await_end(lifeline: socket.socket) -> None:
    """Wait until the other end is closed; to wait in ``recv`` would keep the signal away."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.poll()


def adopt(lifeline: socket.socket) -> None:
    """Have this process, which something else started, end when the other end is closed."""

    def end() -> None:
        _await_end(lifeline)
        os._exit(1)

    die_with(lifeline, os.getpid())
    Thread(target=end, name="paged_core lifeline", daemon=True).start()
