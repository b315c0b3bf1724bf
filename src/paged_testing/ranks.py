"""Processes that are ranks of a group, and the shared memory that must not outlive them."""

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from paged_core.errors import error_text
from paged_core.processes.channel import ANSWER
from paged_core.processes.child import PythonChild
from paged_core.processes.child_main import Parent
from paged_testing.use import growth

_ENDING = 10.0
"""Seconds that a process which was killed may take to end."""


class RankProcess:
    """A process of Python that joins groups; it ends when this one does.

    It can join another group when it has left one, so that few processes are started.
    """

    def __init__(self) -> None:
        self._child = PythonChild("paged_testing.ranks:main", name="a rank", reads=True)
        self._channel = self._child.channels[0]
        self.is_lost = False
        """True if a signal was sent to it: then it is of no further use."""

    def send(self, *message: Any) -> None:
        """Ask it to ``join`` a group, to ``call`` or to ``leave``."""
        with suppress(OSError):  # it has ended, which its answer says
            self._channel.send(ANSWER, pickle.dumps(message))

    def answer(self, seconds: float) -> Any:
        """Return its answer.

        Raises:
            AssertionError: there is none within ``seconds``, or it has ended.
        """
        try:
            return pickle.loads(self._channel.receive_within(seconds)[1])
        except TimeoutError:
            self.is_lost = True
            raise AssertionError(f"a rank has not returned within {seconds:g} s") from None
        except (EOFError, OSError):
            self.is_lost = True
            how, _ = self._child.how_it_ended()
            raise AssertionError(f"the process of a rank {how}") from None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal that it will not survive, or stops at."""
        self.is_lost = True
        os.kill(self._child.pid or 0, number)
        if number == signal.SIGKILL:
            self._child.wait(_ENDING)

    def close(self) -> None:
        """End it."""
        self._child.close()


class RankPool:
    """Processes that are in no group, to be used again."""

    def __init__(self) -> None:
        self._idle: list[RankProcess] = []

    def take(self, count: int) -> list[RankProcess]:
        """Return processes of ranks."""
        while len(self._idle) < count:
            self._idle.append(RankProcess())
        taken, self._idle = self._idle[:count], self._idle[count:]
        return taken

    def give_back(self, processes: Sequence[RankProcess]) -> None:
        """Take processes back that have left their group; those that are lost are ended."""
        for each in processes:
            if each.is_lost:
                each.close()
            else:
                self._idle.append(each)

    def close(self) -> None:
        """End all."""
        while self._idle:
            self._idle.pop().close()


# ---------------------------------------------------------------------------------- what they leave


def named_memory() -> set[str]:
    """Return the shared memory that has a name."""
    return {str(path) for path in Path("/dev/shm").iterdir()}


def check_no_memory_left(before: set[str]) -> None:
    """Check that no shared memory has come since ``before`` and stayed that no process uses.

    What other programs map is theirs, and a semaphore of theirs has a name for a moment.

    Raises:
        AssertionError: There is some after two seconds.
    """
    for _ in range(20):
        left = named_memory() - before - _mapped_memory()
        if not left:
            return
        sleep(0.1)
    raise AssertionError(f"in /dev/shm there are still {sorted(left)}")


def _mapped_memory() -> set[str]:
    """Return the shared memory that a process has mapped."""
    found = set[str]()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            found.update(re.findall(r"/dev/shm/\S+", maps.read_text("utf-8", "replace")))
    return found


# ---------------------------------------------------------------------------------- in the process


def main(parent: Parent) -> None:
    """Do what is asked until the other end is closed."""
    channel = parent.channels[0]
    import_module("torch").set_num_threads(1)
    communicator: Any = None
    while True:
        try:
            what, *arguments = pickle.loads(channel.receive()[1])
        except (EOFError, OSError):
            return
        answer: Any = None
        try:
            if what == "join":
                component, options, context = arguments
                communicator = component.load()(options, context)
            elif what == "held":
                communicator = None if arguments else communicator  # "drop"
                gc.collect()
                answer = held()
            elif what == "leave":
                if communicator is not None:
                    communicator.close()
            else:
                found = [_called(communicator, *call) for call in arguments[0]]
                answer = [each() if callable(each) else each for each in found]
        except Exception as error:  # noqa: BLE001 - told to the test
            answer = (type(error).__name__, error_text(error), 0.0)
        channel.send(ANSWER, pickle.dumps(answer))


def _called(communicator: Any, kind: str, values: Any, source: int) -> Any:
    """Return the tensor after a call, or the class, text and seconds of its error; of a tensor that
    the call returned, what reads it."""
    started = monotonic()
    try:
        if kind == "pause":
            sleep(values)
            return None
        if kind == "uses":
            return growth(partial(_use, communicator), values, None)[0]
        tensor = tensor_of(*values)
        while kind == "repeat":  # until a rank is lost
            started = monotonic()
            communicator.all_reduce(tensor)
        if kind == "all_reduce":
            communicator.all_reduce(tensor)
        elif kind == "all_gather":
            return partial(values_of, communicator.all_gather(tensor))
        else:
            communicator.broadcast(tensor, source)
        return values_of(tensor)
    except Exception as error:  # noqa: BLE001 - told to the test
        return (type(error).__name__, str(error), monotonic() - started)


def _use(communicator: Any, number: int) -> None:
    """Exchange tensors of a shape of their own; the first ones are the largest."""
    torch = import_module("torch")
    rows = 1 + (508 + 200 * number) % 509  # a prime number: none comes again
    dtype = (torch.float32, torch.bfloat16, torch.float16)[number % 3]
    tensor = torch.ones(rows, 1 + 7 * (number % 2), dtype=dtype)
    communicator.all_reduce(tensor)
    communicator.all_gather(tensor)
    communicator.broadcast(tensor, number % communicator.size)


def held() -> dict[str, Any]:
    """Return what this process holds of the system: open descriptors, by number, and threads."""
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one by which they are listed
            found[each.name] = str(each.readlink())
    threads = len([*Path("/proc/self/task").iterdir()])
    return {"descriptors": found, "threads": threads, "maps of shared memory": _maps_of_memory()}


def _maps_of_memory() -> int:
    """Return how many maps of shared memory this process has."""
    lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    return sum("/dev/shm/" in each or "/memfd:" in each for each in lines)


def tensor_of(dtype: str, shape: Sequence[int], content: bytes, is_transposed: bool = False) -> Any:
    """Return a tensor; transposed, it is not contiguous."""
    torch = import_module("torch")
    if not content:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    tensor = flat.view(getattr(torch, dtype)).reshape(shape)
    return tensor.transpose(0, 1) if is_transposed else tensor


def values_of(tensor: Any) -> bytes:
    """Return the bytes of a tensor."""
    torch = import_module("torch")
    content: bytes = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return content
