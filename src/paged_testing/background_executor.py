"""An executor whose steps run after they were submitted, as on a GPU."""

from __future__ import annotations

from collections import deque
from typing import Any, Self

from paged_core.engine import Engine
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.step import StepInput, StepResult


class BackgroundExecutor(Executor):
    """Passes a step on only when it, or a later one, is collected.

    So an engine that plans ahead cannot have seen any result by then, and one that changes a step
    after it was submitted is found out.
    """

    runs_in_background = True

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self._submitted: deque[tuple[int, StepInput]] = deque()
        self._results: dict[int, StepResult | BaseException] = {}
        self._num_submitted = 0

    @classmethod
    def install(cls, engine: Engine) -> Self:
        """Put one between ``engine`` and its executor."""
        executor = cls(engine.executor)
        engine.executor = executor
        return executor

    def start(self) -> Capacity:
        return self.inner.start()

    def submit(self, step: StepInput, /) -> int:
        handle = self._num_submitted
        self._num_submitted += 1
        self._submitted.append((handle, step))
        return handle

    def collect(self, handle: Any, /) -> StepResult:
        while self._submitted and self._submitted[0][0] <= handle:
            number, step = self._submitted.popleft()
            try:
                self._results[number] = self.inner.collect(self.inner.submit(step))
            except BaseException as error:  # noqa: BLE001 - raised again in ``collect``
                self._results[number] = error
        result = self._results.pop(handle)
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        self.inner.close()
