"""Any executor, with the work of each step counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from paged_core.interfaces.executor import Capacity, Executor
from paged_core.step import StepInput, StepResult
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.runs.work_count import WorkCount


@runtime_checkable
class CountsWork(Protocol):
    """An executor that says what its steps computed."""

    watch: Callable[[StepWork], None]
    """Called with the work of each step that is collected."""


class WatchedExecutor(Executor):
    """Hands every call on to another executor, which has been started."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._count = WorkCount()
        self.watch: Callable[[StepWork], None] = lambda work: None

    def start(self) -> Capacity:
        return self._inner.start()

    def submit(self, step: StepInput, /) -> Any:
        work, _ = self._count.take(step)
        return work, self._inner.submit(step)

    def collect(self, handle: Any, /) -> StepResult:
        work, inner = handle
        result = self._inner.collect(inner)
        self.watch(work)
        return result

    def close(self) -> None:
        self._inner.close()
