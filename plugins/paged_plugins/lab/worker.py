"""Workers: objects whose methods are called here, or in a process of their own."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol, Self

from paged_core.errors import EngineError
from paged_core.processes.channel import ANSWER, ERROR
from paged_core.processes.child import PythonChild
from paged_core.processes.child_main import Parent
from paged_core.processes.failures import error_of, told

_MAKE, _CALL = b"I", b"M"
_ENDING = 10.0
"""Seconds that a process may take to end when nothing more is asked of it."""


class WorkerDied(EngineError):
    """The process of a worker ended before it answered."""


class Worker(Protocol):
    """Calls the methods of an object, wherever it is."""

    def send(self, method: str, /, *arguments: Any) -> None:
        """Call a method; calls are answered in their order."""

    def receive(self) -> Any:
        """Return the answer to the first call that has none yet, or raise what it raised."""


class LocalWorker:
    """Calls an object of this process, which answers at once."""

    def __init__(self, called: object) -> None:
        self._called = called
        self._answers: deque[Any] = deque()

    def send(self, method: str, /, *arguments: Any) -> None:
        self._answers.append(getattr(self._called, method)(*arguments))

    def receive(self) -> Any:
        return self._answers.popleft()


class WorkerProcess:
    """Calls an object that a process of its own makes; leaving it ends the process.

    Args:
        make: a function of a module, which is called in the process and opens the object; it and
            its ``arguments`` can be pickled.
        name: of the process, for errors.
    """

    def __init__(
        self,
        make: Callable[..., AbstractContextManager[object]],
        *arguments: Any,
        name: str = "its process",
    ) -> None:
        made = pickle.dumps((make, arguments))
        self.child = PythonChild("paged_plugins.lab.worker:main", name=name, reads=True)
        self._channel = self.child.channels[0]
        self._channel.send(_MAKE, made)

    def fileno(self) -> int:
        """Return what can be read once there is an answer, or the process has ended."""
        return self._channel.fileno()

    def send(self, method: str, /, *arguments: Any) -> None:
        with suppress(OSError):  # it has died, which its answer will say
            self._channel.send(_CALL, pickle.dumps((method, arguments), pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Return an answer.

        Raises:
            WorkerDied: the process has ended.
            PagedCoreError: what the call raised; the process ends with it.
        """
        try:
            kind, content = self._channel.receive()
        except (EOFError, OSError):
            how, _ = self.child.how_it_ended()
            raise WorkerDied(f"{self.child.name} {how}; was memory short?") from None
        if kind == ERROR:
            raise error_of(content)
        return pickle.loads(content)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.child.kill()
        self._channel.shut()  # where a process ends that waits for a call
        self.child.close(_ENDING)


def main(parent: Parent) -> None:
    """Make an object and answer calls of it, until the channel is closed or something raises."""
    channel = parent.channels[0]
    try:
        make, arguments = pickle.loads(channel.receive()[1])
        with make(*arguments) as called:
            while True:
                try:
                    method, given = pickle.loads(channel.receive()[1])
                except (EOFError, OSError):
                    return
                answer = getattr(called, method)(*given)
                channel.send(ANSWER, pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # noqa: BLE001 - raised where the call was made
        with suppress(OSError):
            channel.send(ERROR, told(error))
