"""A shard in a process of its own."""

from __future__ import annotations

import pickle
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from paged_core.errors import EngineError, error_text
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_plugins.lab.cluster.build_shard import build_shard
from paged_plugins.lab.cluster.shard import Shard
from paged_plugins.lab.tasks.worker_process import start_worker


class ShardProcess:
    """Calls a shard that a process of its own builds; leaving it ends the process.

    Args:
        numbers: of its replicas.
    """

    def __init__(self, numbers: range, settings: EngineSettings, registry: Registry) -> None:
        self._numbers = numbers
        self._process, self._pipe = start_worker(
            _serve, numbers, settings, registry, name="cluster worker"
        )

    @property
    def pid(self) -> int | None:
        """Number of the process."""
        return self._process.pid

    def send(self, method: str, /, *arguments: Any) -> None:
        with suppress(OSError):  # it has died, which its answer will say
            self._pipe.send_bytes(pickle.dumps((method, arguments), pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Return an answer.

        Raises:
            EngineError: the process has died.
            Exception: what the shard raised.
        """
        try:
            answer = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            self._process.join()
            first, last = self._numbers[0], self._numbers[-1]
            raise EngineError(
                f"the process of replicas {first} to {last} ended with status "
                f"{self._process.exitcode}; was memory short?"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.terminate()
        self._pipe.close()  # where a process ends that waits for a call
        self._process.join()


def _serve(pipe: Connection, numbers: range, settings: EngineSettings, registry: Registry) -> None:
    """Build a shard and answer calls, until the pipe is closed or something raises."""
    try:
        with closing(build_shard(numbers, settings, registry)) as shard:
            _answer_calls(pipe, shard)
    except Exception as error:  # noqa: BLE001 - raised where the call was made
        with suppress(OSError):
            pipe.send_bytes(_pickled(error))


def _answer_calls(pipe: Connection, shard: Shard) -> None:
    while True:
        try:
            call = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        method, arguments = pickle.loads(call)
        answer = pickle.dumps(getattr(shard, method)(*arguments), pickle.HIGHEST_PROTOCOL)
        try:
            pipe.send_bytes(answer)
        except OSError:
            return


def _pickled(error: Exception) -> bytes:
    """Return an error, or what it says if it cannot be pickled."""
    try:
        found = pickle.dumps(error)
        pickle.loads(found)
    except Exception:  # noqa: BLE001 - code of a plugin
        return pickle.dumps(EngineError(error_text(error)))
    return found
