"""Runs tasks on a Ray cluster (Moritz et al., OSDI 2018), whose machines have the same packages."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from paged_core.errors import SettingsError, error_text
from paged_core.registry import Registry
from paged_plugins.lab.study.fingerprint import code_digest
from paged_plugins.lab.study.task import Ran, Task, run

LOCAL = "local"
"""The address of a cluster that is started here, and stopped at the end."""
_AHEAD = 2
"""Tasks that are submitted for each core."""


def run_on_ray(
    tasks: Sequence[Task], registry: Registry, *, address: str, workers: int | None
) -> Iterator[Ran]:
    """Run tasks on a cluster and yield each when it has ended, on a core each.

    Args:
        address: of the cluster: ``auto``, ``host:port``, ``ray://host:port`` or :data:`LOCAL`.
        workers: runs at a time; ``None``: one for each core of the cluster.

    Raises:
        SettingsError: Ray is not installed, or the cluster cannot be reached.
    """
    with _connected(address, workers) as ray:
        cores = int(ray.cluster_resources().get("CPU", 1))
        most = min(workers or cores, cores) * (_AHEAD if workers is None else 1)
        remote, shared = ray.remote(_run), ray.put(registry)
        code, waiting = code_digest(registry), deque(tasks)
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
                except (ray.exceptions.RayError, SettingsError) as error:
                    yield Ran(task, None, error_text(error).splitlines()[0])


def _run(task: Task, registry: Registry, code: str) -> Ran:
    """Run a task on a machine of the cluster, if it has the code that the others have."""
    if code_digest(registry) != code:
        return Ran(task, None, "a machine of the cluster has other code; install the same there")
    return run(task, registry)


@contextmanager
def _connected(address: str, workers: int | None) -> Iterator[ModuleType]:
    try:
        import ray
    except ImportError as error:
        raise SettingsError(f"--ray needs Ray ({error}): pip install 'paged-core[ray]'") from None
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        chosen = {"address": "local", "include_dashboard": False, "num_cpus": workers}
    else:
        chosen = {"address": address}
    try:
        ray.init(**chosen, logging_level="error", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        raise SettingsError(f"no Ray cluster at {address}: {why}") from None
    try:
        yield ray
    finally:
        ray.shutdown()
