"""Component ``tensor_parallel``: several ranks compute each step, each its share of every layer.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism" (2019). There is one scheduler; the same step, with the same block ids, goes to every
rank, and the first one samples.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paged_backends.executors.channel import free_port
from paged_backends.executors.remote import RemoteExecutor
from paged_backends.executors.settings import TensorParallelSettings
from paged_backends.executors.worker import Worker
from paged_backends.executors.worker_process import WorkerProcess
from paged_core.engine.contexts import ExecutorContext, RankGroup
from paged_core.settings.schema import EngineSettings

if TYPE_CHECKING:
    from paged_backends.executors.ray_workers import RayWorkers

_HERE = "127.0.0.1"
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"


class TensorParallelExecutor(RemoteExecutor):
    """Starts the ranks, and sends each step to all of them."""

    def __init__(self, options: TensorParallelSettings, context: ExecutorContext, /) -> None:
        super().__init__(options, context)
        self._options = options
        self._actors: RayWorkers | None = None

    def _name(self, rank: int, size: int) -> str:
        return f"executor 'tensor_parallel', rank {rank} of {size}"

    def _start_workers(self, workers: list[Worker]) -> Sequence[ExecutorContext]:
        options, size = self._options, self._options.ranks
        names = [self._name(rank, size) for rank in range(size)]
        if options.placement == "ray":
            host, port, num_cores = self._start_actors(workers, names)
        else:
            host, port, num_cores = _HERE, free_port(_HERE), self._start_processes(workers, names)
        group = RankGroup(
            name=f"paged-core-{os.getpid()}-{secrets.token_hex(6)}",
            host=host,
            port=port,
            timeout=options.communicator_timeout,
        )
        return [self._parts(rank, group, num_cores) for rank in range(size)]

    def _start_processes(self, workers: list[Worker], names: Sequence[str]) -> int:
        """Start a process for each name; return how many cores it has."""
        options, shares = self._options, shares_of_cores(len(names))
        settings, pins = self._context.settings, options.pin_cores
        if pins == "auto":
            pins = _deals_threads(settings)
        pins = pins and settings.device in ("auto", "cpu")
        for name, cores in zip(names, shares, strict=True):
            cpus = [cpu for core in cores for cpu in core] if pins else ()
            workers.append(
                WorkerProcess(name, heartbeat_timeout=options.heartbeat_timeout, cores=cpus)
            )
        return max(1, len(shares[0]))

    def _start_actors(self, workers: list[Worker], names: Sequence[str]) -> tuple[str, int, int]:
        """Start an actor for each name; return where they meet, and how many cores each has."""
        from paged_backends.executors.ray_workers import RayWorkers

        num_cores = self._context.settings.threads or 1
        resources = {"CPU": float(num_cores)}
        if self._context.settings.device.startswith("cuda"):
            resources["GPU"] = 1.0
        if self._actors is None:
            self._actors = RayWorkers(len(names) * num_cores)
        started, host, port = self._actors.start(names, resources, self._options.heartbeat_timeout)
        workers += started
        return host, port, num_cores

    def close(self) -> None:
        """End the ranks."""
        super().close()
        if self._actors is not None:
            self._actors.close()
            self._actors = None

    def _parts(self, rank: int, group: RankGroup, num_cores: int) -> ExecutorContext:
        """Return those of one rank."""
        parts, size = self._context, self._options.ranks
        settings = parts.settings
        if _deals_threads(settings):
            settings = settings.model_copy(update={"threads": num_cores})
        if self._options.placement == "ray" and settings.device == "cuda":
            settings = settings.model_copy(update={"device": "cuda:0"})  # the actor sees no other
        return replace(
            parts,
            settings=settings,
            rank=rank,
            size=size,
            group=group if size > 1 else None,
        )


def _deals_threads(settings: EngineSettings) -> bool:
    """Whether the executor decides how many threads each rank has."""
    return settings.threads is None and "OMP_NUM_THREADS" not in os.environ


def shares_of_cores(count: int) -> list[list[list[int]]]:
    """Deal the cores that this process may use; return the logical processors of each core of each
    share. The shares are empty where there are not enough cores, or they are not known."""
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(count)]
    cores: dict[tuple[str, ...], list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        cores.setdefault(_core_of(cpu), []).append(cpu)
    each = len(cores) // count
    # neighbours share a cache, or a processor
    ordered = [cores[core] for core in sorted(cores, key=lambda core: cores[core])]
    return [ordered[rank * each : (rank + 1) * each] for rank in range(count)]


def _core_of(cpu: int) -> tuple[str, ...]:
    try:
        names = ("physical_package_id", "die_id", "core_id")
        return tuple(Path(_TOPOLOGY.format(cpu, name)).read_text().strip() for name in names)
    except OSError:
        return (str(cpu),)
