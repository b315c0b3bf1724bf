"""A process that works for this one, which it talks to through a pipe."""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from typing import Any


def start_worker(
    serve: Callable[..., None], *arguments: Any, name: str
) -> tuple[BaseProcess, Connection]:
    """Start a process that calls ``serve`` with its end of a pipe and ``arguments``.

    Ctrl-C reaches every process of a terminal, and a worker leaves it to this process to end it. If
    this process is killed, the worker finds the pipe closed.

    Args:
        serve: a function of a module; what it is called with can be pickled.

    Returns:
        The process, and this end of the pipe.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(serve, theirs, *arguments), daemon=True, name=name
    )
    ensure_running()  # which unblocks SIGINT, if the start below has to call it
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()  # with the mask, so that Ctrl-C finds it quiet while it imports, too
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    theirs.close()
    return process, ours


def _serve(serve: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(pipe, *arguments)
