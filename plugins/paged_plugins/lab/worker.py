"""Workers: objects whose methods are called here, or in a process of their own."""

from __future__ import annotations

import pickle
import signal
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.resource_tracker import ensure_running
from typing import Any, Protocol, Self

from paged_core.errors import EngineError, error_text


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

    The process has a pipe of its own, so that it is known whose call it had if it dies, and that it
    finds the pipe closed, and ends, if this process is killed. Ctrl-C reaches every process of a
    terminal: a worker leaves it to this process to end it.

    Args:
        make: a function of a module, which is called in the process and opens the object; it and
            its ``arguments`` can be pickled.
        name: of the process.
        what: the process, as errors call it.
    """

    def __init__(
        self,
        make: Callable[..., AbstractContextManager[object]],
        *arguments: Any,
        name: str,
        what: str = "its process",
    ) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        """Ready to be read once there is an answer, or the process has ended."""
        self.process = context.Process(
            target=_main, args=(theirs, make, *arguments), daemon=True, name=name
        )
        self._what = what
        ensure_running()  # which unblocks SIGINT, if the start below has to call it
        old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()  # with the mask: Ctrl-C finds it quiet while it imports, too
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
        theirs.close()

    def send(self, method: str, /, *arguments: Any) -> None:
        with suppress(OSError):  # it has died, which its answer will say
            self.pipe.send_bytes(pickle.dumps((method, arguments), pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Return an answer.

        Raises:
            WorkerDied: the process has ended.
            Exception: what the call raised; the process ends with it.
        """
        try:
            answer = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join()
            status = self.process.exitcode
            raise WorkerDied(
                f"{self._what} ended with status {status}; was memory short?"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.process.terminate()
        self.pipe.close()  # where a process ends that waits for a call
        self.process.join()


def _main(pipe: Connection, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(pipe, *arguments)


def _serve(
    pipe: Connection, make: Callable[..., AbstractContextManager[object]], *arguments: Any
) -> None:
    """Make an object and answer calls of it, until the pipe is closed or something raises."""
    try:
        with make(*arguments) as called:
            _answer_calls(pipe, called)
    except Exception as error:  # noqa: BLE001 - raised where the call was made
        with suppress(OSError):
            pipe.send_bytes(_pickled(error))


def _answer_calls(pipe: Connection, called: object) -> None:
    while True:
        try:
            call = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        method, arguments = pickle.loads(call)
        answer = pickle.dumps(getattr(called, method)(*arguments), pickle.HIGHEST_PROTOCOL)
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
