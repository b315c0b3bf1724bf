"""A pool of workers."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from types import TracebackType
from typing import Any, Self

from paged_core.errors import SettingsError, error_text
from paged_core.registry import Registry
from paged_plugins.lab.tasks.task import Ran, Task, code_digest, run


def start_worker(
    serve: Callable[..., None], *arguments: Any, name: str
) -> tuple[BaseProcess, Connection]:
    """Start a process that calls ``serve`` with its end of a pipe and ``arguments``.

    Ctrl-C reaches every process of a terminal, and a worker leaves it to this process to end it. If
    this process is killed, the worker finds the pipe closed.

    Args:
        serve: a function of a module; what it is called with can be pickled.

    Returns:
        The process, and this end of the pipe.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(serve, theirs, *arguments), daemon=True, name=name
    )
    ensure_running()  # which unblocks SIGINT, if the start below has to call it
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()  # with the mask, so that Ctrl-C finds it quiet while it imports, too
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    theirs.close()
    return process, ours


def _serve(serve: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(pipe, *arguments)


_FEW = 4
"""Tasks, up to which a process of their own would not pay."""


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


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


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
        process, pipe = start_worker(_serve_tasks, self._registry, name="lab worker")
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


def _serve_tasks(pipe: Connection, registry: Registry) -> None:
    """Be a worker: run what comes until the pipe is closed."""
    try:
        while True:
            pipe.send(run(pipe.recv(), registry))
    except (EOFError, OSError):
        return


LOCAL = "local"
"""The address of a cluster that is started here, and stopped at the end."""
_AHEAD = 2
"""Tasks that are submitted for each core, where their number is not limited."""


class RayCluster:
    """A connection to a cluster, on which each task takes a core.

    Args:
        address: ``auto``, ``host:port`` or :data:`LOCAL`.
        workers: runs at a time; ``None``: one for each core of the cluster.

    Raises:
        SettingsError: Ray is not installed, or the cluster cannot be reached; when the connection
            is made, by ``with``.
    """

    def __init__(self, address: str, registry: Registry, workers: int | None) -> None:
        self._address = address
        self._registry = registry
        self._workers = workers

    def __enter__(self) -> Self:
        try:
            import ray
        except ImportError as error:
            why = f"Ray cannot be imported ({error}); pip install 'paged-core[ray]'"
            raise SettingsError(f"--ray: {why}") from None
        chosen: dict[str, Any] = {"address": self._address}
        if self._address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            chosen |= {"include_dashboard": False, "num_cpus": self._workers}
        try:
            ray.init(**chosen, logging_level="error", log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            why = str(error).partition("\n")[0]
            raise SettingsError(f"--ray: no cluster at {self._address}: {why}") from None
        self._ray = ray
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ray.shutdown()

    def run(self, tasks: Sequence[Task]) -> Iterator[Ran]:
        """Run tasks and yield each when it has ended."""
        ray = self._ray
        shared = ray.put(self._registry)
        remote = ray.remote(max_retries=1)(_run_there)
        most = self._workers or _AHEAD * int(ray.cluster_resources().get("CPU", 1))
        code, waiting = code_digest(self._registry), deque(tasks)
        under_way: dict[object, Task] = {}
        while waiting or under_way:
            while waiting and len(under_way) < most:
                task = waiting.popleft()
                under_way[remote.remote(task, shared, code)] = task
            done, _ = ray.wait(list(under_way))
            for reference in done:
                task = under_way.pop(reference)
                try:
                    yield ray.get(reference)
                except ray.exceptions.WorkerCrashedError:
                    yield Ran(task, None, "its process ended; was memory short?")
                except ray.exceptions.RayError as error:
                    yield Ran(task, None, error_text(error).partition("\n")[0])


def _run_there(task: Task, registry: Registry, code: str) -> Ran:
    """Run a task on a machine of the cluster, if it has the code that this one has."""
    if code_digest(registry) != code:
        return Ran(task, None, "a machine of the cluster has other code; install the same there")
    return run(task, registry)


Runner = Callable[[Sequence[Task]], Iterator[Ran]]
"""Runs tasks and yields each when it has ended; it may be called again and again."""


def run_tasks(
    tasks: Sequence[Task],
    registry: Registry,
    *,
    workers: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> Iterator[Ran]:
    """Run tasks and yield each when it has ended; one that fails does not stop the others.

    Args:
        workers: processes; 1: none but this one, and tasks end in their order.
        progress: called after every task.
    """
    with open_runner(registry, workers=min(workers, len(tasks))) as runner:
        for ran in runner(tasks):
            progress()
            yield ran


@contextmanager
def open_runner(
    registry: Registry, *, workers: int | None, cluster: str | None = None
) -> Iterator[Runner]:
    """Start what runs tasks, and end it with the block, whatever it is doing.

    Args:
        workers: runs at a time; ``None``: one for each core of the cluster.
        cluster: the address of a Ray cluster, see :class:`RayCluster`; ``None``: this machine.

    Raises:
        SettingsError: Ray is not installed, or the cluster cannot be reached.
    """
    if cluster is not None:
        with RayCluster(cluster, registry, workers) as ray:
            yield ray.run
    elif workers is None or workers <= 1:
        yield lambda tasks: (run(task, registry) for task in tasks)
    else:
        with WorkerPool(workers, registry) as pool:
            yield pool.run
