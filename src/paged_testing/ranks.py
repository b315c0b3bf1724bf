"""Processes that are ranks of a group, and the shared memory that must not outlive them."""

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
import sys
from _socket import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from paged_core.errors import ExecutorLost, error_text
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
            # what is imported may lie where nothing was when the process was started
            self._channel.send(ANSWER, pickle.dumps((sys.path, pickle.dumps(message))))

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
    tensors = _Tensors()
    while True:
        try:
            sys.path[:], message = pickle.loads(channel.receive()[1])
            what, *arguments = pickle.loads(message)
        except (EOFError, OSError):
            return
        answer: Any = None
        try:
            if what == "join":
                component, options, context = arguments
                tensors = _Tensors()
                communicator = component.load()(options, context)
            elif what == "held":
                if arguments:  # "drop"
                    communicator, tensors = None, _Tensors()
                gc.collect()
                answer = held()
            elif what == "leave":
                if communicator is not None:
                    communicator.close()
            else:
                answer = [_called(communicator, tensors, *call) for call in arguments[0]]
                tensors.check()
        except Exception as error:  # noqa: BLE001 - told to the test
            answer = (_kind(error), error_text(error), 0.0, 0.0)
        channel.send(ANSWER, pickle.dumps(answer))


_MANY_SECONDS = 20.0
"""After these the first rank makes an end of many calls."""
_BESIDE = 3
"""Numbers before and after a tensor, in memory."""


class _Tensors:
    """Tensors of a group: given ones are parts of others and come again with other numbers,
    returned ones stay."""

    def __init__(self) -> None:
        self._given: dict[Any, tuple[Any, Any]] = {}
        self._returned: list[tuple[Any, bytes]] = []

    def given(self, dtype: str, shape: Any, content: bytes, is_transposed: bool = False) -> Any:
        """Return a tensor with these values, which is that of the last call of its kind."""
        new, key = tensor_of(dtype, shape, content, is_transposed), (dtype, shape, is_transposed)
        if key not in self._given:
            whole = new.new_ones(new.numel() + 2 * _BESIDE)
            part = whole[_BESIDE:-_BESIDE].view(shape)
            self._given[key] = whole, part.transpose(0, 1) if is_transposed else part
        return self._given[key][1].copy_(new)

    def returned(self, tensor: Any) -> bytes:
        """Return the bytes of a tensor that a call returned."""
        self._returned.append((tensor, values_of(tensor)))
        return self._returned[-1][1]

    def check(self) -> None:
        """Check that none that was returned has changed, and nothing beside those given."""
        for whole, part in self._given.values():
            beside = bool(whole[:_BESIDE].all() and whole[-_BESIDE:].all())
            assert beside, f"it changed what is beside a tensor of the shape {tuple(part.shape)}"
        for number, (tensor, content) in enumerate(self._returned):
            assert values_of(tensor) == content, (
                f"what all_gather() returned first but {number} has changed after later calls: "
                "return a tensor of its own, neither a buffer nor what it was given"
            )


def _kind(error: Exception) -> str:
    """Return which of the errors that the interface names it is, if it is one."""
    named = (ExecutorLost, TypeError, ValueError)
    return next((e.__name__ for e in named if isinstance(error, e)), type(error).__name__)


def _called(communicator: Any, tensors: _Tensors, kind: str, values: Any, source: int) -> Any:
    """Return the tensor after a call; or the class, text and seconds of its error, and after a loss
    the most seconds of further calls."""
    started = monotonic()
    try:
        if kind == "pause":
            sleep(values)
            return None
        if kind == "uses":
            return _grown(communicator, *values)
        if kind == "many":
            left = import_module("torch").tensor([values])
            while left > 0:
                is_late = monotonic() - started > _MANY_SECONDS
                left -= values if is_late and communicator.rank == 0 else 1
                communicator.broadcast(left)
            return None
        tensor = tensors.given(*values)
        if kind == "slow":
            with _slow_sockets() if source else nullcontext():
                communicator.all_reduce(tensor)
            return "in time", "", monotonic() - started, 0.0
        while kind == "repeat":  # until a rank is lost
            started = monotonic()
            communicator.all_reduce(tensor)
        if kind == "all_reduce":
            communicator.all_reduce(tensor)
        elif kind == "all_gather":
            made = communicator.all_gather(tensor)
            shape, dtype = (communicator.size, *tensor.shape), tensor.dtype
            assert (made.shape, made.dtype) == (shape, dtype), (
                f"all_gather() returns a tensor of {(made.shape, made.dtype)}, not {(shape, dtype)}"
            )
            gathered = tensors.returned(made)
            assert values_of(tensor) == values_of(tensor_of(*values)), (
                "it changed what it was given"
            )
            return gathered
        else:
            ways = [((), {}), ((source,), {}), ((), {"source": source})]
            arguments, named = ways[source if source in (0, 1) else 2]
            communicator.broadcast(tensor, *arguments, **named)
        return values_of(tensor)
    except Exception as error:  # noqa: BLE001 - told to the test
        found = (_kind(error), str(error), monotonic() - started, 0.0)
        return _lost_for_good(communicator, found) if isinstance(error, ExecutorLost) else found


@contextmanager
def _slow_sockets() -> Iterator[None]:
    """Let calls of sockets take longer, up to 10 s together."""
    left = [0.2] * 50

    def profile(_frame: object, event: str, called: Any) -> None:
        owner = getattr(called, "__self__", None)
        if left and event == "c_return" and isinstance(owner, socket):
            sleep(left.pop())

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def _lost_for_good(communicator: Any, found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what was found of a loss, or that a later call of any kind does not fail so."""
    torch, most = import_module("torch"), 0.0
    for name in ("all_reduce", "all_gather", "broadcast"):
        started, after = monotonic(), f"after ExecutorLost ({found[1]}) {name}()"
        try:
            getattr(communicator, name)(torch.ones(3))
            return ("no error", f"{after} returns, and the group is to be of no use", 0.0, 0.0)
        except ExecutorLost:
            most = max(most, monotonic() - started)
        except Exception as error:  # noqa: BLE001 - told to the test
            return (_kind(error), f"{after}: {error_text(error)}", 0.0, 0.0)
    return (*found[:3], most)


def _grown(communicator: Any, num_uses: int, package: str) -> int:
    """Return the bytes that uses leave here; ranks go on until each has measured its own."""
    torch, numbers = import_module("torch"), count()
    found: list[Any] = []

    def use(_: int) -> bool:
        ended = torch.tensor(float(len(found)))
        communicator.all_reduce(ended)
        is_last = bool(ended == communicator.size)
        if not is_last:
            _use(communicator, next(numbers))
        return is_last

    try:
        found.append(growth(use, num_uses, package)[0])
    except AssertionError as error:
        found.append(error)
    while not use(0):
        pass
    if isinstance(found[0], Exception):
        raise found[0]
    grown: int = found[0]
    return grown


def _use(communicator: Any, number: int) -> None:
    """Exchange tensors of a shape of their own; the first ones are the largest, and those are alike
    after which memory is measured."""
    torch = import_module("torch")
    rows = 1 + (508 + 200 * number) % 509  # a prime number: none comes again
    rows = 200 if number % 6 == 3 else rows
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
