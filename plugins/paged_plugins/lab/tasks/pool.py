"""The pool that runs tasks, and its placements: this process, processes beside it, a Ray cluster.

Moritz et al., "Ray: A Distributed Framework for Emerging AI Applications", OSDI 2018.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, Self

from paged_core.errors import error_text
from paged_core.plugins.registry import Registry
from paged_core.processes.ray_child import Cluster
from paged_plugins.lab.tasks.task import Ran, Task, code_digest, run
from paged_plugins.lab.worker import WorkerDied, WorkerProcess
from paged_plugins.machine import num_cores

_FEW = 4
"""Tasks, up to which a process of their own would not pay."""
_AHEAD = 2
"""Tasks that are submitted for each core of a cluster, where their number is not limited."""

Runner = Callable[[Sequence[Task]], Iterator[Ran]]
"""Runs tasks and yields each when it has ended; it may be called again and again."""


class Placement(Protocol):
    """Where tasks run."""

    @property
    def size(self) -> int:
        """Tasks in flight at once."""

    def submit(self, task: Task, /) -> Any:
        """Begin a task; return what stands for it in the other methods."""

    def ready(self, handles: Sequence[Any], /) -> Iterable[Any]:
        """Wait for tasks in flight; return those that have ended, one or more."""

    def result(self, handle: Any, task: Task, /) -> Ran:
        """Return what became of a task that has ended; that it failed is no exception."""


@contextmanager
def open_runner(
    registry: Registry, *, workers: int | None, cluster: str | None = None
) -> Iterator[Runner]:
    """Start what runs tasks, and end it with the block, whatever it is doing.

    Args:
        workers: runs at a time; ``None``: one for each core of the cluster. With 1, and no cluster,
            tasks run in this process, in their order.
        cluster: the address of a Ray cluster: ``auto``, ``host:port`` or ``local``; ``None``:
            this machine.

    Raises:
        SettingsError: Ray is not installed, or the cluster cannot be reached.
    """
    opened: AbstractContextManager[Placement]
    if cluster is not None:
        opened = _RayCluster(cluster, registry, workers)
    elif workers is None or workers <= 1:
        opened = nullcontext(_Here(registry))
    else:
        opened = _Processes(workers, registry)
    with opened as placement:
        yield partial(_run_all, placement)


def num_workers(
    num_tasks: int, asked: int | None, *, is_real: bool, cluster: str | None = None
) -> int | None:
    """Return how many runs there are at a time; ``None``: one for each core of the cluster.

    Args:
        asked: by the user; ``None``: as many as cores, or 1 for few tasks.
        is_real: they are timed where they run, so that they must not share it.
        cluster: the address of a Ray cluster, if they run on one.
    """
    if asked is not None:
        return max(1, min(asked, num_tasks))
    if is_real:
        return 1
    if cluster is not None:
        return None
    return 1 if num_tasks <= _FEW else min(num_cores(), num_tasks)


def _run_all(placement: Placement, tasks: Sequence[Task]) -> Iterator[Ran]:
    """Run tasks and yield each when it has ended; one that fails does not stop the others."""
    waiting, in_flight = deque(tasks), dict[Any, Task]()

    def submit() -> None:
        while waiting and len(in_flight) < placement.size:
            task = waiting.popleft()
            in_flight[placement.submit(task)] = task

    submit()
    while in_flight:
        for handle in placement.ready(list(in_flight)):
            ran = placement.result(handle, in_flight.pop(handle))
            submit()
            yield ran


class _Here:
    """This process, which runs a task when its result is asked for."""

    size = 1

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def submit(self, task: Task, /) -> object:
        return object()

    def ready(self, handles: Sequence[object], /) -> Sequence[object]:
        return handles

    def result(self, handle: object, task: Task, /) -> Ran:
        return run(task, self._registry)


class _Processes:
    """Processes that run a task each at a time; leaving it ends them, whatever they do.

    One that dies fails its task alone, and is replaced.
    """

    def __init__(self, size: int, registry: Registry) -> None:
        self.size = size
        self._registry = registry
        self._workers: list[WorkerProcess] = []
        self._idle: list[WorkerProcess] = []

    def submit(self, task: Task, /) -> WorkerProcess:
        if not self._idle:
            self._idle.append(WorkerProcess(_open_tasks, self._registry))
            self._workers.append(self._idle[-1])
        worker = self._idle.pop()
        worker.send("result", None, task)
        return worker

    def ready(self, handles: Sequence[WorkerProcess], /) -> Sequence[WorkerProcess]:
        return select.select(handles, [], [])[0]

    def result(self, handle: WorkerProcess, task: Task, /) -> Ran:
        try:
            ran: Ran = handle.receive()
        except Exception as error:  # noqa: BLE001 - the other tasks go on
            why = str(error) if isinstance(error, WorkerDied) else error_text(error)
            self._workers.remove(handle)
            handle.__exit__(type(error))
            return Ran(task, None, why)
        self._idle.append(handle)
        return ran

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            if worker not in self._idle:
                worker.child.kill()
        for worker in self._workers:
            worker.__exit__(None)


def _open_tasks(registry: Registry) -> AbstractContextManager[_Here]:
    return nullcontext(_Here(registry))


class _RayCluster:
    """A connection to a cluster, on which each task takes a core; its machines have the same code.

    Args:
        workers: runs at a time; ``None``: one for each core.
    """

    def __init__(self, address: str, registry: Registry, workers: int | None) -> None:
        self._address = address
        self._registry = registry
        self._workers = workers

    def __enter__(self) -> Self:
        self._cluster = Cluster("--ray", self._address, num_cpus=self._workers)
        ray = self._ray = self._cluster.ray
        self._remote = ray.remote(max_retries=1)(_run_there)
        self._shared = ray.put(self._registry), code_digest(self._registry)
        self.size = self._workers or _AHEAD * int(ray.cluster_resources().get("CPU", 1))
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def submit(self, task: Task, /) -> Any:
        return self._remote.remote(task, *self._shared)

    def ready(self, handles: Sequence[Any], /) -> Sequence[Any]:
        done: Sequence[Any] = self._ray.wait(list(handles))[0]
        return done

    def result(self, handle: Any, task: Task, /) -> Ran:
        try:
            ran: Ran = self._ray.get(handle)
        except self._ray.exceptions.WorkerCrashedError:
            return Ran(task, None, "its process ended; was memory short?")
        except self._ray.exceptions.RayError as error:
            return Ran(task, None, error_text(error).partition("\n")[0])
        return ran


def _run_there(task: Task, registry: Registry, code: str) -> Ran:
    """Run a task on a machine of the cluster, if it has the code that this one has."""
    if code_digest(registry) != code:
        return Ran(task, None, "a machine of the cluster has other code; install the same there")
    return run(task, registry)
