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
from dataclasses import dataclass
from importlib import import_module
from threading import Thread
from typing import Any

from paged_core.processes.beat import Beat
from paged_core.processes.channel import CLOSE, PING, PONG, Channel
from paged_core.processes.child import die_with

_FLUSHING = 5.0
"""Seconds that the other end may take to read the last messages."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The process that started this one, as this one sees it."""

    arguments: Sequence[Any]
    channels: Sequence[Channel]
    beat: Beat

    def listen(
        self, take: Callable[[bytes, bytes], None], wake: Callable[[], None] = lambda: None
    ) -> None:
        """Have a thread hand on what comes on the first channel, ``CLOSE`` last.

        It answers heartbeats by itself, whatever the other threads are at. This process ends when
        the other end is closed.

        Args:
            wake: called for each heartbeat, to have a loop show that it lives.
        """
        Thread(
            target=self._hear, args=(take, wake), name="paged_core messages", daemon=True
        ).start()

    def _hear(self, take: Callable[[bytes, bytes], None], wake: Callable[[], None]) -> None:
        channel, kind = self.channels[0], b""
        with suppress(EOFError, OSError):
            while kind != CLOSE:
                kind, content = channel.receive()
                if kind == PING:
                    channel.send(PONG, self.beat.told())
                    wake()
                else:
                    take(kind, content)
            return
        os._exit(1)  # the process that started this one is gone: nothing is wanted any more


def main(
    target: str,
    arguments: Sequence[Any],
    channels: Sequence[int],
    lifeline: int,
    beat: int,
    cores: Sequence[int],
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
        run(target, Parent(arguments, ends, Beat(beat)))
        status = 0
    except Exception:  # noqa: BLE001 - what no target has told the other end of
        traceback.print_exc()
    for end in ends:
        end.flush(_FLUSHING)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)  # threads of libraries are not waited for


def run(target: str, parent: Parent) -> None:
    """Call what a target names."""
    module, _, function = target.partition(":")
    getattr(import_module(module), function)(parent)


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
