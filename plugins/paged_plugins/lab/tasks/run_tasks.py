"""Runs tasks: in this process, on several cores, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from paged_core.registry import Registry
from paged_plugins.lab.tasks.ray_cluster import RayCluster
from paged_plugins.lab.tasks.task import Ran, Task, run
from paged_plugins.lab.tasks.worker_pool import WorkerPool

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
