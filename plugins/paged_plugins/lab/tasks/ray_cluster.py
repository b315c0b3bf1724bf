"""Runs tasks on a Ray cluster (Moritz et al., OSDI 2018), whose machines have the same packages."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from paged_core.errors import SettingsError, error_text
from paged_core.registry import Registry
from paged_plugins.lab.tasks.fingerprint import code_digest
from paged_plugins.lab.tasks.task import Ran, Task, run

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
        remote = ray.remote(max_retries=1)(_run)
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


def _run(task: Task, registry: Registry, code: str) -> Ran:
    """Run a task on a machine of the cluster, if it has the code that this one has."""
    if code_digest(registry) != code:
        return Ran(task, None, "a machine of the cluster has other code; install the same there")
    return run(task, registry)
