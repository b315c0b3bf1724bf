"""An executor that fails on demand."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from paged_core.engine import Engine
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.step import StepInput, StepResult


class StepFailure(RuntimeError):
    """A deliberate failure."""


class FailingExecutor(Executor):
    """Passes steps on to the executor of an engine, and raises in some.

    Args:
        before: numbers of submissions (from 0) that raise before the executor gets them.
        after: numbers of submissions that raise after the executor ran them; the result is lost.
    """

    def __init__(
        self, inner: Executor, *, before: Collection[int] = (), after: Collection[int] = ()
    ) -> None:
        self.inner = inner
        self.num_submitted = 0
        self._before = frozenset(before)
        self._after = frozenset(after)

    @classmethod
    def install(cls, engine: Engine, **failures: Collection[int]) -> FailingExecutor:
        """Wrap the executor of ``engine``."""
        failing = cls(engine.executor, **failures)
        engine.executor = failing
        return failing

    def start(self) -> Capacity:
        return self.inner.start()

    def submit(self, step: StepInput, /) -> Any:
        number, self.num_submitted = self.num_submitted, self.num_submitted + 1
        if number in self._before:
            raise StepFailure(f"submission {number} fails before it runs")
        return number, self.inner.submit(step)

    def collect(self, handle: Any, /) -> StepResult:
        number, inner = handle
        result = self.inner.collect(inner)
        if number in self._after:
            raise StepFailure(f"submission {number} fails after it ran")
        return result

    def close(self) -> None:
        self.inner.close()
