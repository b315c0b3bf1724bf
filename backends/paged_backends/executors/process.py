"""Component ``process``: another executor's steps, in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence

from paged_backends.executors.remote import RemoteExecutor
from paged_backends.executors.settings import ProcessSettings
from paged_backends.executors.worker import Worker
from paged_backends.executors.worker_process import WorkerProcess
from paged_core.engine.contexts import ExecutorContext


class ProcessExecutor(RemoteExecutor):
    """Sends steps to a process that runs them."""

    def __init__(self, options: ProcessSettings, context: ExecutorContext, /) -> None:
        super().__init__(options, context)
        self._heartbeat_timeout = options.heartbeat_timeout

    def _start_workers(self, workers: list[Worker]) -> Sequence[ExecutorContext]:
        parts = self._context
        name = self._name(parts.rank, parts.size)
        workers.append(WorkerProcess(name, heartbeat_timeout=self._heartbeat_timeout))
        return [parts]
