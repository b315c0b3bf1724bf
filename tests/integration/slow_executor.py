"""Executors and processors that another process can import."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Literal

from paged_backends.executors.memory import MemoryExecutor
from paged_backends.executors.settings import MemorySettings
from paged_core.engine.contexts import ExecutorContext
from paged_core.interfaces.executor import Capacity
from paged_core.plugins.component import Component
from paged_core.step import StepResult


class SlowSettings(MemorySettings):
    """Durations in seconds."""

    name: Literal["slow"] = "slow"  # type: ignore[assignment]
    start: float = 0.0
    step: float = 0.0
    close: float = 0.0
    fails: bool = False
    """In every step, once it was waited for."""
    exits: bool = False
    """When it is started."""


class SlowExecutor(MemoryExecutor):
    """``memory``, at its leisure."""

    def __init__(self, options: SlowSettings, context: ExecutorContext, /) -> None:
        super().__init__(options, context)
        self._slow, self._context = options, context

    def start(self) -> Capacity:
        time.sleep(self._slow.start)
        if self._slow.exits:
            os._exit(40 + self._context.rank)
        return super().start()

    def collect(self, handle: Any, /) -> StepResult:
        time.sleep(self._slow.step)
        if self._slow.fails:
            raise LookupError("a deliberate failure")
        return super().collect(handle)

    def close(self) -> None:
        time.sleep(self._slow.close)
        super().close()


SLOW = Component(
    "executor", SlowSettings, "integration.slow_executor:SlowExecutor", summary="a test's"
)


def favour_token_9(output: Sequence[int], logits: Any) -> Any:
    """A processor that another process can import."""
    logits[9] += 3.0 * (len(output) % 2)
    return logits
