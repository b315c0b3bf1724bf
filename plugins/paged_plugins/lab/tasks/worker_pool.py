"""Processes that run tasks, one each at a time.

A worker gets its tasks through a pipe of its own, so that it is known which task a worker had that
died, and that a worker whose parent was killed finds the pipe closed and ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

from paged_core.registry import Registry
from paged_plugins.lab.tasks.task import Ran, Task, run
from paged_plugins.lab.tasks.worker_process import start_worker


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: Task

    def result(self) -> Ran:
        """Return what became of its task, once its pipe is ready."""
        try:
            ran: Ran = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            why = f"its process ended with status {self.process.exitcode}; was memory short?"
            return Ran(self.task, None, why)
        return ran


class WorkerPool:
    """Worker processes; leaving it ends them, whatever they do."""

    def __init__(self, size: int, registry: Registry) -> None:
        self._size = size
        self._registry = registry
        self._busy: list[_Worker] = []
        self._idle: list[_Worker] = []

    def run(self, tasks: Sequence[Task]) -> Iterator[Ran]:
        """Run tasks and yield each when it has ended. A worker that dies is replaced."""
        waiting = deque(tasks)
        while waiting and len(self._busy) < self._size:
            self._give(waiting.popleft())
        while self._busy:
            ready = wait([worker.pipe for worker in self._busy])
            for worker in [one for one in self._busy if one.pipe in ready]:
                self._busy.remove(worker)
                ran = worker.result()
                if worker.process.is_alive():
                    self._idle.append(worker)
                if waiting:
                    self._give(waiting.popleft())
                yield ran

    def _give(self, task: Task) -> None:
        """Give a task to a worker that is idle, or to a new one."""
        worker = self._idle.pop() if self._idle else self._start(task)
        worker.task = task
        self._busy.append(worker)
        with suppress(OSError):  # it has died meanwhile, which its result will say
            worker.pipe.send(task)

    def _start(self, task: Task) -> _Worker:
        process, pipe = start_worker(_serve, self._registry, name="lab worker")
        return _Worker(process, pipe, task)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._busy:
            worker.process.terminate()
        for worker in (*self._busy, *self._idle):
            worker.pipe.close()  # where an idle worker ends
            worker.process.join()


def _serve(pipe: Connection, registry: Registry) -> None:
    """Be a worker: run what comes until the pipe is closed."""
    try:
        while True:
            pipe.send(run(pipe.recv(), registry))
    except (EOFError, OSError):
        return
