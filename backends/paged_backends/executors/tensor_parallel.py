"""Component ``tensor_parallel``: several ranks compute each step, each its share of every layer.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism" (2019). There is one scheduler; the same step, with the same block ids, goes to every
rank, and the first one samples.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paged_backends.executors.remote import RemoteExecutor
from paged_backends.executors.settings import TensorParallelSettings
from paged_backends.executors.worker import Worker
from paged_backends.executors.worker_process import WorkerProcess
from paged_core.engine.contexts import ExecutorContext, RankGroup

_HERE = "127.0.0.1"
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"


class TensorParallelExecutor(RemoteExecutor):
    """Starts the ranks, and sends each step to all of them."""

    def __init__(self, options: TensorParallelSettings, context: ExecutorContext, /) -> None:
        super().__init__(options, context)
        self._options = options

    def _start_workers(self, workers: list[Worker]) -> Sequence[ExecutorContext]:
        options, parts = self._options, self._context
        shares = shares_of_cores(options.ranks)
        pins = options.pin_cores and parts.settings.device in ("auto", "cpu")
        for rank, cores in enumerate(shares):
            workers.append(
                WorkerProcess(
                    self._name(rank, options.ranks),
                    heartbeat_timeout=options.heartbeat_timeout,
                    cores=[cpu for core in cores for cpu in core] if pins else (),
                )
            )
        group = RankGroup(
            name=f"paged-core-{os.getpid()}-{secrets.token_hex(6)}",
            host=_HERE,
            port=free_port(_HERE),
            timeout=options.communicator_timeout,
        )
        return [self._parts(rank, group, len(cores)) for rank, cores in enumerate(shares)]

    def _parts(self, rank: int, group: RankGroup, num_cores: int) -> ExecutorContext:
        """Return those of one rank."""
        parts, size = self._context, self._options.ranks
        settings = parts.settings
        if settings.threads is None and "OMP_NUM_THREADS" not in os.environ:
            settings = settings.model_copy(update={"threads": max(1, num_cores)})
        return replace(
            parts,
            settings=settings,
            rank=rank,
            size=size,
            group=group if size > 1 else None,
        )


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


def free_port(host: str) -> int:
    """Return a port that nothing listens on."""
    with socket.create_server((host, 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
