"""What a worker runs: another executor's steps.

It ends when it is told to, and at once when the process that started it has ended.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any

from paged_backends.executors.channel import (
    ANSWER,
    CLOSE,
    ERROR,
    PING,
    PONG,
    STEP,
    Channel,
)
from paged_backends.executors.remote_grammars import serve_grammars
from paged_core import errors
from paged_core.checked.fault_names import FaultNames
from paged_core.engine.contexts import ExecutorContext, make_component
from paged_core.errors import (
    PagedCoreError,
    PluginError,
    SettingsError,
    error_place,
    error_text,
    stack_text,
)
from paged_core.interfaces.executor import Capacity, Executor, SupportsClock
from paged_core.interfaces.layer import ModelSize
from paged_core.interfaces.runner import SupportsModelSize

Messages = SimpleQueue[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a started executor says of itself."""

    capacity: Capacity
    model_size: ModelSize | None
    runs_in_background: bool


def main(descriptor: int, grammars: int) -> None:
    """Serve the socket of this number until it is closed; ``grammars``: that of forms."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    serve(socket.socket(fileno=descriptor), socket.socket(fileno=grammars))


def serve(steps: socket.socket, grammars: socket.socket) -> None:
    """Serve both sockets until the first one is closed."""
    channel, messages = Channel(steps), Messages()
    Thread(target=_read, args=(channel, messages), daemon=True).start()
    _, content = messages.get()
    faults = FaultNames({})
    try:
        parts = _parts(content)
        faults = FaultNames.of(parts.settings)
        executor, started = _start(parts)
    except Exception as error:  # noqa: BLE001 - raised again in the other process
        channel.send(ERROR, _told(error, faults))
        return
    line = Channel(grammars)
    Thread(target=serve_grammars, args=(line, executor), daemon=True).start()
    try:
        channel.send(ANSWER, pickle.dumps(started))
        _Steps(executor, channel, faults, parts, started).run(messages)
    finally:
        executor.close()


def _read(channel: Channel, messages: Messages) -> None:
    """Answer heartbeats, whatever the executor is at; hand on all else."""
    kind = b""
    try:
        while kind != CLOSE:
            kind, content = channel.receive()
            if kind == PING:
                channel.send(PONG)
            else:
                messages.put((kind, content))
    except (EOFError, OSError):
        os._exit(1)  # the process that started this one is gone: nothing is wanted any more


def _parts(content: bytes) -> ExecutorContext:
    try:
        parts: ExecutorContext = pickle.loads(content)
    except Exception as error:
        raise PluginError(
            f"its process cannot import what the settings name ({error_text(error)}); define "
            "components in a module, not in the program that is started"
        ) from error
    return parts


def _start(context: ExecutorContext) -> tuple[Executor, Started]:
    executor: Executor = make_component(
        context.registry, "executor", context.settings.executor, context
    )
    if isinstance(executor, SupportsClock):
        raise SettingsError(
            f"executor.inner: {context.settings.executor.name!r} has a clock of its own, which "
            "another process cannot read; use it as the executor itself"
        )
    capacity = executor.start()
    size = executor.model_size() if isinstance(executor, SupportsModelSize) else None
    in_background = executor.runs_in_background
    return executor, Started(capacity=capacity, model_size=size, runs_in_background=in_background)


class _Steps:
    """Runs steps; one may be launched that is not collected, until ``COLLECT`` asks for all."""

    def __init__(
        self,
        executor: Executor,
        channel: Channel,
        faults: FaultNames,
        parts: ExecutorContext,
        started: Started,
    ) -> None:
        self._executor = executor
        self._channel = channel
        self._faults = faults
        self._num_ahead = 1 if started.runs_in_background else 0
        self._tells = parts.group is None or parts.rank == 0
        """Whether its results are wanted; of other ranks, only that the step is done."""

    def run(self, messages: Messages) -> None:
        """Run what comes, until ``CLOSE``."""
        launched: deque[Any] = deque()
        while True:
            kind, content = messages.get()
            if kind == CLOSE:
                return
            if kind == STEP:
                launched.append(self._submit(content))
            while len(launched) > (self._num_ahead if kind == STEP else 0):
                self._channel.send(*self._collect(launched.popleft()))

    def _submit(self, content: bytes) -> Any:
        try:
            return self._executor.submit(pickle.loads(content))
        except Exception as error:  # noqa: BLE001 - raised again in the other process
            return _Failed(_told(error, self._faults))

    def _collect(self, handle: Any) -> tuple[bytes, bytes]:
        if isinstance(handle, _Failed):
            return ERROR, handle.told
        try:
            result = self._executor.collect(handle)
            content = pickle.dumps(result if self._tells else None, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - raised again in the other process
            return ERROR, _told(error, self._faults)
        return ANSWER, content


@dataclass(frozen=True, slots=True)
class _Failed:
    """The handle of a step that could not be submitted."""

    told: bytes


def _told(error: Exception, faults: FaultNames) -> bytes:
    """Return the name of an error of ours and its message, of any other where it comes from; and
    its traceback."""
    stack = stack_text(error)
    if isinstance(error, PagedCoreError):
        ours = (kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return pickle.dumps((next(ours).__name__, f"{error}{error_place(error)}", stack))
    return pickle.dumps(("PluginError", faults.describe(error, "executor"), stack))
