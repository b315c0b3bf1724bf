"""Main function of a worker: it runs another executor's steps, until it is told to end."""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

from paged_backends.executors.remote_grammars import serve_grammars
from paged_core.checked.fault_names import FaultNames
from paged_core.engine.contexts import ExecutorContext
from paged_core.errors import PluginError, SettingsError, error_text
from paged_core.interfaces.executor import Capacity, Executor, SupportsClock
from paged_core.interfaces.layer import ModelSize
from paged_core.interfaces.runner import SupportsModelSize
from paged_core.plugins.making import make_component
from paged_core.processes.channel import ANSWER, CLOSE, ERROR, Channel
from paged_core.processes.child_main import Parent
from paged_core.processes.failures import told

START, STEP, COLLECT = b"I", b"S", b"C"
"""To a worker: the parts of its executor, first; a step; collect all steps. It gives one answer
for the start and for each step, in order."""

Messages = SimpleQueue[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Facts about an executor that has started."""

    capacity: Capacity
    model_size: ModelSize | None
    runs_in_background: bool


def main(parent: Parent) -> None:
    """Serve what comes on the channel of steps and on that of forms."""
    channel, grammars = parent.channels
    messages = parent.messages
    _, content = messages.get()
    faults = FaultNames({})
    try:
        parts = _parts(content)
        faults = FaultNames.of(parts.settings)
        executor, started = _start(parts)
    except Exception as error:  # noqa: BLE001 - raised again in the other process
        channel.send(ERROR, told(error, partial(faults.describe, called="executor")))
        return
    Thread(target=serve_grammars, args=(grammars, executor), daemon=True).start()
    try:
        channel.send(ANSWER, pickle.dumps(started))
        _Steps(executor, channel, faults, parts, started).run(messages)
    finally:
        executor.close()


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
        self._describe = partial(faults.describe, called="executor")
        self._num_ahead = 1 if started.runs_in_background else 0
        self._tells = parts.group is None or parts.rank == 0
        """True if its results are wanted; other ranks say only that the step is done."""

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
            return _Failed(told(error, self._describe))

    def _collect(self, handle: Any) -> tuple[bytes, bytes]:
        if isinstance(handle, _Failed):
            return ERROR, handle.told
        try:
            result = self._executor.collect(handle)
            content = pickle.dumps(result if self._tells else None, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - raised again in the other process
            return ERROR, told(error, self._describe)
        return ANSWER, content


@dataclass(frozen=True, slots=True)
class _Failed:
    """The handle of a step that could not be submitted."""

    told: bytes
