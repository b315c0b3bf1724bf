"""Runs tasks, in this process or on several cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from paged_core.registry import Registry
from paged_plugins.lab.study.task import Ran, Task, run
from paged_plugins.lab.study.worker_pool import WorkerPool


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
    for ran in _runs(tasks, registry, min(workers, len(tasks))):
        progress()
        yield ran


def _runs(tasks: Sequence[Task], registry: Registry, workers: int) -> Iterator[Ran]:
    if workers <= 1:
        yield from (run(task, registry) for task in tasks)
        return
    with WorkerPool(workers, registry) as pool:
        yield from pool.run(tasks)
