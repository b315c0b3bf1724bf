"""Executors whose steps are pickled: in this process, and for a process of their own."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from paged_backends.executors.memory import MemoryExecutor
from paged_backends.executors.settings import LocalSettings, MemorySettings
from paged_core.component import Component, ComponentSettings
from paged_core.interfaces.component_factory import make_component
from paged_core.interfaces.executor import Capacity, Executor, ExecutorParts
from paged_core.step import StepInput, StepResult

OPTIONS: dict[str, ComponentSettings] = {"local": LocalSettings(), "memory": MemorySettings()}


class PicklingSettings(MemorySettings):
    """Those of ``memory``."""

    name: Literal["pickling"] = "pickling"  # type: ignore[assignment]


class PicklingExecutor(MemoryExecutor):
    """``memory`` behind a wire: what goes in and what comes out are copies."""

    def start(self) -> Capacity:
        return replace(super().start(), remote=True)

    def submit(self, step: StepInput, /) -> bytes:
        return pickle.dumps(step)

    def collect(self, handle: bytes, /) -> StepResult:
        step = pickle.loads(handle)
        assert pickle.dumps(step) == handle
        result = super().collect(step)
        copy: StepResult = pickle.loads(pickle.dumps(result))
        assert copy == result
        return copy


class RemoteSettings(ComponentSettings):
    """Another executor in a process of its own."""

    name: Literal["remote"] = "remote"
    inner: Literal["local", "memory"] = "memory"


class RemoteExecutor(Executor):
    """Starts a fresh interpreter, sends it the parts, and then step after step."""

    def __init__(self, options: RemoteSettings, parts: ExecutorParts, /) -> None:
        self._options, self._parts = options, parts
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def start(self) -> Capacity:
        spawn = multiprocessing.get_context("spawn")
        self._connection, other = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(other, self._options.inner, self._parts), daemon=True
        )
        self._process.start()
        other.close()
        capacity: Capacity = self._connection.recv()
        return replace(capacity, remote=True)

    def submit(self, step: StepInput, /) -> None:
        assert self._connection is not None
        self._connection.send(step)

    def collect(self, handle: Any, /) -> StepResult:
        assert self._connection is not None
        result: StepResult = self._connection.recv()
        return result

    def close(self) -> None:
        if self._process is not None and self._connection is not None:
            self._connection.close()
            self._process.join()
            self._process = None


def favour_token_9(output: Sequence[int], logits: Any) -> Any:
    """A processor that another process can import."""
    logits[9] += 3.0 * (len(output) % 2)
    return logits


def _serve(connection: Connection, inner: str, parts: ExecutorParts) -> None:
    executor: Executor = make_component(parts.registry, "executor", OPTIONS[inner], parts)
    connection.send(executor.start())
    while True:
        try:
            step = connection.recv()
        except EOFError:
            break
        connection.send(executor.collect(executor.submit(step)))
    executor.close()


PICKLING = Component(
    "executor", PicklingSettings, "integration.remote_executor:PicklingExecutor", summary="a test's"
)
REMOTE = Component(
    "executor", RemoteSettings, "integration.remote_executor:RemoteExecutor", summary="a test's"
)
