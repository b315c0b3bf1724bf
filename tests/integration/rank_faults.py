"""An executor of ranks of which one is at fault, that another process can import."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

from paged_backends.executors.local import LocalExecutor
from paged_backends.executors.settings import LocalSettings
from paged_core.engine.contexts import ExecutorContext
from paged_core.errors import SettingsError
from paged_core.interfaces.executor import Capacity
from paged_core.plugins.component import Component
from paged_core.step import StepInput


class FaultySettings(LocalSettings):
    """Faults, and the ranks that have them."""

    name: Literal["faulty_rank"] = "faulty_rank"  # type: ignore[assignment]
    start: float = 0.0
    """Seconds that each rank waits before it starts."""
    folder: str = ""
    """Where a rank that waits writes its number, and where ``hang`` tells it to, in a step."""
    hangs: int = -1
    refuses: int = -1
    """The rank that does not start."""
    raises: tuple[int, ...] = ()


class FaultyRank(LocalExecutor):
    """``local``, less reliably."""

    def __init__(self, options: FaultySettings, context: ExecutorContext, /) -> None:
        super().__init__(options, context)
        self._faults, self._rank = options, context.rank

    def start(self) -> Capacity:
        if self._faults.start:
            self._wait(self._faults.start)
        if self._faults.refuses == self._rank:
            raise SettingsError(f"rank {self._rank} has no memory")
        return super().start()

    def submit(self, step: StepInput, /) -> Any:
        if self._faults.hangs == self._rank:
            while (Path(self._faults.folder) / "hang").exists():
                self._wait(0.05)
        if self._rank in self._faults.raises:
            raise LookupError("a deliberate failure")
        return super().submit(step)

    def _wait(self, seconds: float) -> None:
        (Path(self._faults.folder) / str(os.getpid())).touch()
        time.sleep(seconds)


FAULTY = Component(
    "executor", FaultySettings, "integration.rank_faults:FaultyRank", summary="a test's"
)
