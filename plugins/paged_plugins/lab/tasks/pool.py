"""The pool that runs tasks: in this process, or in processes beside it."""

from __future__ import annotations

import os
import pickle
import select
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import structlog

from paged_core.cli.logs import configure_logs
from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_core.processes.channel import ANSWER
from paged_core.processes.child import PythonChild
from paged_core.processes.child_main import Parent
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.tasks.task import Ran, Task, run
from paged_plugins.machine import num_cores

_FEW = 4
"""Tasks, up to which a process of their own would not pay."""
_REGISTRY, _TASK = b"I", b"M"
_UNPICKLABLE = (pickle.PickleError, AttributeError, ImportError, TypeError)
"""Errors of pickle over a class that cannot be imported by its name."""
_ENDING = 10.0
"""Seconds that a process may take to end when nothing more is asked of it."""

Runner = Callable[[Sequence[Task]], Iterator[Ran]]
"""Runs tasks and yields each when it has ended; it may be called again and again."""


@contextmanager
def open_runner(registry: Registry, *, workers: int) -> Iterator[Runner]:
    """Start what runs tasks, and end it with the block, whatever it is doing.

    Args:
        workers: runs at a time; with 1, tasks run in this process, in their order.
    """
    if workers <= 1:
        with _faults_told_once():
            yield lambda tasks: (run(task, registry) for task in tasks)
        return
    with _Processes(workers, registry) as processes:
        yield processes.run


@contextmanager
def _faults_told_once(*, tells: bool = True) -> Iterator[None]:
    """Let the log of a command name a fault once: runs fail alike, and results count them.

    Args:
        tells: false: not at all, as another process does.
    """
    told = set[str]()

    def once(_logger: object, _method: str, event: Any) -> Any:
        reason = event.get("reason")
        if reason and (not tells or reason in told):
            raise structlog.DropEvent
        told.add(reason)
        return event

    if not structlog.is_configured():  # not in a command: the program's own log
        yield
        return
    processors = structlog.get_config()["processors"]
    structlog.configure(processors=[once, *processors])
    try:
        yield
    finally:
        structlog.configure(processors=processors)


def num_workers(num_tasks: int, asked: int | None, *, is_real: bool) -> int:
    """Return how many runs there are at a time.

    Args:
        asked: by the user; ``None``: as many as cores, or 1 for few tasks.
        is_real: they are timed where they run, so that they must not share it.
    """
    if asked is not None:
        return max(1, min(asked, num_tasks))
    if is_real or num_tasks <= _FEW:
        return 1
    return min(num_cores(), num_tasks)


class _Processes:
    """Processes that run a task each at a time; leaving it ends them, whatever they do.

    One that dies fails its task alone, and is replaced.
    """

    def __init__(self, size: int, registry: Registry) -> None:
        self._size = size
        self._registry = registry
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []

    def run(self, tasks: Sequence[Task]) -> Iterator[Ran]:
        """Run tasks and yield each when it has ended; one that fails does not stop the others."""
        waiting, in_flight = deque(tasks), dict[_Worker, Task]()
        while waiting or in_flight:
            while waiting and len(in_flight) < self._size:
                task = waiting.popleft()
                in_flight[self._begin(task)] = task
            for worker in select.select([*in_flight], [], [])[0]:
                yield self._result(worker, in_flight.pop(worker))

    def _begin(self, task: Task) -> _Worker:
        if not self._idle:
            self._idle.append(_Worker(self._registry, tells=not self._workers))
            self._workers.append(self._idle[-1])
        worker = self._idle.pop()
        worker.begin(task)
        return worker

    def _result(self, worker: _Worker, task: Task) -> Ran:
        try:
            record, problem = worker.result()
        except (EOFError, OSError):
            how, _ = worker.child.how_it_ended()
            self._workers.remove(worker)
            worker.close()
            return Ran(task, None, f"{worker.child.name} {how}; was memory short?")
        self._idle.append(worker)
        return Ran(task, record, problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            if worker not in self._idle:
                worker.child.kill()
        for worker in self._workers:
            worker.close()


class _Worker:
    """A process that runs tasks, one after the other."""

    def __init__(self, registry: Registry, *, tells: bool) -> None:
        self.child = PythonChild(f"{__name__}:main", name="its process", reads=True)
        self._channel = self.child.channels[0]
        self._channel.send(_REGISTRY, pickle.dumps((_packed(registry), tells)))

    def fileno(self) -> int:
        """Return what can be read once there is a result, or the process has ended."""
        return self._channel.fileno()

    def begin(self, task: Task) -> None:
        """Send it a task.

        Raises:
            SettingsError: another process cannot be told its settings.
        """
        try:
            content = pickle.dumps(task)
        except _UNPICKLABLE as error:
            raise SettingsError(_cannot_be_sent(task, error)) from None
        with suppress(OSError):  # it has died, which its result will say
            self._channel.send(_TASK, content)

    def result(self) -> tuple[RunRecord | None, str | None]:
        """Return what became of the task: its record, or why there is none.

        Raises:
            EOFError, OSError: the process has ended.
        """
        record, problem = pickle.loads(self._channel.receive()[1])
        return record, problem

    def close(self) -> None:
        self._channel.shut()  # where a process ends that waits for a task
        self.child.close(_ENDING)


def _packed(registry: Registry) -> list[bytes]:
    """Return the plugins for another process, each alone, without those that cannot be pickled."""
    packed = []
    for plugin in registry.plugins:
        with suppress(*_UNPICKLABLE):
            packed.append(pickle.dumps(plugin))
    return packed


def _unpacked(packed: Sequence[bytes]) -> Registry:
    """Return the registry with the plugins that can be unpickled here."""
    plugins = []
    for each in packed:
        with suppress(*_UNPICKLABLE):
            plugins.append(pickle.loads(each))
    return Registry(tuple(plugins))


def _cannot_be_sent(task: object, error: Exception) -> str:
    return (
        f"{task} cannot be run in another process: {error}; write the class of the options as a "
        "`class` of a module, or run with --workers 1"
    )


def main(parent: Parent) -> None:
    """Run tasks until the channel is closed."""
    channel = parent.channels[0]
    configure_logs(None, os.environ)
    with suppress(EOFError, OSError):
        packed, tells = pickle.loads(channel.receive()[1])
        registry = _unpacked(packed)
        with _faults_told_once(tells=tells):
            while True:
                answer = _answer(channel.receive()[1], registry)
                channel.send(ANSWER, pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))


def _answer(content: bytes, registry: Registry) -> tuple[RunRecord | None, str | None]:
    """Run a pickled task; return its record, or why there is none."""
    try:
        task = pickle.loads(content)
    except _UNPICKLABLE as error:
        return None, _cannot_be_sent("it", error)
    ran = run(task, registry)
    return ran.record, ran.problem
