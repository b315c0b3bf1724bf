"""Executors and a communicator that are slow or at fault, and a processor, that another process can
import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any, Literal

from paged_backends.communication.settings import GlooSettings, ShmSettings
from paged_backends.executors.memory import MemoryExecutor
from paged_backends.executors.settings import MemorySettings
from paged_core.engine.contexts import CommunicatorContext, ExecutorContext
from paged_core.errors import SettingsError
from paged_core.interfaces.communicator import Communicator
from paged_core.interfaces.executor import Capacity
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.step import StepInput, StepResult


class SlowSettings(MemorySettings):
    """Duration of a step in seconds."""

    name: Literal["slow"] = "slow"  # type: ignore[assignment]
    step: float = 0.0


class SlowExecutor(MemoryExecutor):
    """``memory``, at its leisure."""

    def __init__(self, options: SlowSettings, context: ExecutorContext, /) -> None:
        super().__init__(options, context)
        self._seconds = options.step

    def collect(self, handle: Any, /) -> StepResult:
        time.sleep(self._seconds)
        return super().collect(handle)


SLOW = Component(
    "executor", SlowSettings, "integration.slow_executor:SlowExecutor", summary="a test's"
)


class FaultySettings(MemorySettings):
    """Faults, and the ranks that have them."""

    name: Literal["faulty_rank"] = "faulty_rank"  # type: ignore[assignment]
    start: float = 0.0
    """Seconds that each rank waits before it starts, or the one that is late alone."""
    late: int = -1
    """The rank that is late for the group, which all of them join."""
    folder: str = ""
    """Where a rank that waits writes its number, and where ``hang`` tells it to, in a step."""
    hangs: int = -1
    refuses: int = -1
    """The rank that does not start."""
    raises: tuple[int, ...] = ()


class FaultyRank(MemoryExecutor):
    """``memory``, less reliably: its processes start in a second."""

    def __init__(self, options: FaultySettings, context: ExecutorContext, /) -> None:
        super().__init__(options, context)
        self._faults, self._rank = options, context.rank
        self._context = context
        self._group: Communicator | None = None

    def start(self) -> Capacity:
        if self._faults.start and self._faults.late in (-1, self._rank):
            self._wait(self._faults.start)
        if self._faults.refuses == self._rank:
            raise SettingsError(f"rank {self._rank} has no memory")
        if self._faults.late >= 0:
            self._group = self._context.make_communicator("cpu")
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
    "executor", FaultySettings, "integration.slow_executor:FaultyRank", summary="a test's"
)


class DyingSettings(ComponentSettings):
    """Rank that is killed, once, and when."""

    name: Literal["dying"] = "dying"
    inner: str = "shm"
    killed: int = 0
    call: int = 1
    moment: str = "before"
    marker: str = ""
    """A file that is there once it was killed."""


class DyingCommunicator(Communicator):
    """Kills its process before, soon after the start of, or after one call of another one."""

    def __init__(self, options: DyingSettings, context: CommunicatorContext, /) -> None:
        # here, or every rank of every test would import PyTorch
        from paged_backends.communication.gloo import GlooCommunicator
        from paged_backends.communication.shared_memory import ShmCommunicator

        self.rank, self.size, self._options, self._call = context.rank, context.size, options, 0
        self._inner: Communicator = (
            GlooCommunicator(GlooSettings(), context)
            if options.inner == "gloo"
            else ShmCommunicator(ShmSettings(buffer_size=1024), context)
        )
        self.all_reduce, self.all_gather, self.broadcast = (  # type: ignore[method-assign]
            self._counted(getattr(self._inner, name))
            for name in ("all_reduce", "all_gather", "broadcast")
        )

    def _counted(self, operation: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            self._call += 1
            asked, marker = self._options, Path(self._options.marker)
            dies = (self.rank, self._call) == (asked.killed, asked.call) and not marker.exists()
            if dies:
                marker.touch()
            if dies and asked.moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if dies and asked.moment == "inside":
                Timer(2e-5, os.kill, (os.getpid(), signal.SIGKILL)).start()
            found = operation(*given, **named)
            if dies and asked.moment == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return counted

    def all_reduce(self, tensor: Any, /) -> None:
        raise NotImplementedError

    def all_gather(self, tensor: Any, /) -> Any:
        raise NotImplementedError

    def broadcast(self, tensor: Any, /, source: int = 0) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._inner.close()


DYING = Component(
    "communicator", DyingSettings, "integration.slow_executor:DyingCommunicator", summary="a test's"
)


def favour_token_9(output: Sequence[int], logits: Any) -> Any:
    """A processor that another process can import."""
    logits[9] += 3.0 * (len(output) % 2)
    return logits
