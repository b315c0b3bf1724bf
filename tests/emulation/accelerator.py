"""An accelerator emulated on a CPU, and executor ``emulated``: ``local`` over it.

It makes mistakes in the order of work visible.

Launched work is done in any order that its events leave open: as late as possible, when it is
awaited, so that a result read too early is found; as early as possible in one of the streams, so
that work that does not wait for what it reads is; or by dice. Memory with undefined content holds
junk, and so does that of a stream which was dropped, as soon as the stream's own work is done: what
another stream reads it for, and did not borrow it, is lost. A graph does its work over the tensors
of its capture, whatever the executor has put in their place since; work that waits for the device
cannot be captured, and work that Python would do otherwise than at the capture raises.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from random import Random
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paged_backends.executors.accelerator import Accelerator, DeviceMemory, Event, Stream
from paged_backends.executors.local import LocalExecutor
from paged_backends.executors.settings import LocalSettings
from paged_core.plugins.component import Component

_JUNK = 0x7F
"""Fills every byte: an index that is out of any range, a number that is far off."""


class EmulatedEvent:
    """A point in the work of an emulated stream."""

    def __init__(self, stream: EmulatedStream, position: int) -> None:
        self._stream = stream
        self._position = position

    def wait(self) -> None:
        """Do the work up to this point."""
        self._stream.run_to(self._position)


Pace = Callable[[int], int]
"""Takes how much work of a stream is pending after a launch; how much of it is done at once."""


def _none(num_pending: int) -> int:
    return 0


def _all(num_pending: int) -> int:
    return num_pending


def _by_dice() -> Pace:
    dice = Random(0)
    return lambda num_pending: dice.randint(0, num_pending)


PACES: Mapping[str, Callable[[], tuple[Pace, Pace]]] = {
    "late": lambda: (_none, _none),
    "compute early": lambda: (_all, _none),
    "transfers early": lambda: (_none, _all),
    "random": lambda: (_by_dice(), _by_dice()),
}
"""Paces of the streams ``compute`` and ``transfers``."""


class EmulatedStream(Stream):
    """Does its work when an event is awaited, or earlier.

    Work is called with another tensor over the memory of each that :meth:`empty` returned, so that
    it is seen when the host drops that one: a GPU's work would not keep it, either.
    """

    def __init__(self, pace: Pace = _none) -> None:
        self._pending: deque[Callable[[], None]] = deque()
        self._num_launched = 0
        self._num_begun = 0
        self._pace = pace
        self._borrowed: dict[int, list[EmulatedEvent]] = {}
        """By the address of memory of this stream: what has to be done before it is reused."""

    def launch(self, work: Callable[[], None], /) -> None:
        """Keep ``work``, and do as much of what is kept as the pace says."""
        if isinstance(work, partial):
            work = partial(work.func, *map(_other, work.args))
        self._keep(work)
        self.run_to(self._num_begun + self._pace(len(self._pending)))

    def _keep(self, work: Callable[[], None]) -> None:
        self._pending.append(work)
        self._num_launched += 1

    def run_to(self, position: int) -> None:
        """Do the work that was launched up to ``position``; if some raises, drop the rest of it."""
        while self._num_begun < position:
            self._num_begun += 1
            work = self._pending.popleft()
            try:
                work()
            except BaseException:
                while self._num_begun < position:
                    self._num_begun += 1
                    self._pending.popleft()
                raise

    def record(self) -> EmulatedEvent:
        """Return the point after all that was launched so far."""
        return EmulatedEvent(self, self._num_launched)

    def follow(self, event: Event, /) -> None:
        """Queue the wait for ``event``."""
        self.launch(event.wait)

    def empty(self, shape: Sequence[int], dtype: torch.dtype, /) -> Tensor:
        """Return junk, which becomes junk again when it was dropped."""
        tensor = _junk(shape, dtype)
        tensor.lender = self  # type: ignore[attr-defined]
        if tensor.numel():
            weakref.finalize(tensor, self._reuse, _other(tensor))
        return tensor

    def borrow(self, tensor: Tensor, /) -> None:
        """Let the stream of ``tensor`` reuse it when what was launched here so far is done."""
        lender: EmulatedStream = tensor.lender  # type: ignore[attr-defined]
        lender._borrowed.setdefault(tensor.data_ptr(), []).append(self.record())

    def _reuse(self, memory: Tensor) -> None:
        """Fill memory that was dropped, as the work would that gets it next."""
        events = self._borrowed.pop(memory.data_ptr(), [])
        self._keep(lambda: _fill_after(events, memory))


_WAITING = {
    *("__bool__", "__contains__", "__float__", "__index__", "__int__", "cpu", "equal", "item"),
    *("masked_select", "nonzero", "tolist", "unique"),
}
"""Functions of tensors that wait for the device, or whose results' shapes it has to tell."""


class _Capture(TorchFunctionMode):
    """Notes what is asked of PyTorch, and refuses what waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name, named = getattr(func, "__name__", str(func)), kwargs or {}
        if name in _WAITING or (name == "__getitem__" and _has_mask(args[1])):
            raise RuntimeError(f"{name}() waits for the device, and cannot be captured")
        self.calls.append((name, *map(_frozen, (*args, *named.values()))))
        return func(*args, **named)


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def _frozen(argument: Any) -> Any:
    """Return what a graph keeps of an argument: of a tensor the shape, as its numbers change."""
    if isinstance(argument, Tensor):
        return tuple(argument.shape)
    if isinstance(argument, tuple | list):
        return tuple(map(_frozen, argument))
    return argument


class EmulatedGraph:
    """Work, and the tensor that it returned when it was captured."""

    def __init__(self, work: Callable[[], Tensor], siblings: list[EmulatedGraph]) -> None:
        self._work = work
        self._siblings = siblings
        with _Capture() as capture:
            output = work()
        self._calls = capture.calls
        self.output = output.clone()

    def replay(self) -> None:
        """Do the work; the outputs of all other graphs are lost, for they share their memory.

        Raises:
            RuntimeError: it is other work than was captured, which a GPU would do again as it was.
        """
        for graph in self._siblings:
            _fill(graph.output)
        with _Capture() as again:
            output = self._work()
        if again.calls != self._calls:
            pairs = zip_longest(again.calls, self._calls)
            now, then = next(pair for pair in pairs if pair[0] != pair[1])
            raise RuntimeError(f"a graph would do {then} again, and its work is now {now}")
        self.output.copy_(output)


class EmulatedAccelerator(Accelerator):
    """A CPU in the place of a GPU."""

    runs_ahead = True
    compute: EmulatedStream
    transfers: EmulatedStream

    def __init__(
        self, *, pace: str = "late", memory: DeviceMemory | None = None, peak: int = 0
    ) -> None:
        """
        Args:
            pace: a key of :data:`PACES`.
            memory: what :meth:`memory` returns; ``None``: it is not known.
            peak: bytes that any work is said to take.
        """
        super().__init__(torch.device("cpu"))
        self.compute, self.transfers = map(EmulatedStream, PACES[pace]())
        self._graphs: list[EmulatedGraph] = []
        self._memory = memory
        self.measures_memory = memory is not None
        self._peak = peak

    def upload(self, array: NDArray[Any], /) -> Tensor:
        """Return junk that becomes a copy of ``array``, as it is now."""
        source = torch.from_numpy(array.copy())
        tensor = self.compute.empty(source.shape, source.dtype)
        self.compute.launch(partial(_copy, tensor, source))
        return tensor

    def pinned(self, shape: Sequence[int], dtype: torch.dtype, /) -> Tensor:
        """Return junk."""
        return _junk(shape, dtype)

    def reuse(self, buffer: Tensor, /) -> None:
        """Fill ``buffer`` with junk: work that still needs it comes to light."""
        _fill(buffer)

    def capture(self, work: Callable[[], Tensor], /) -> EmulatedGraph:
        """Do ``work`` now, and keep it."""
        graph = EmulatedGraph(work, self._graphs)
        self._graphs.append(graph)
        return graph

    def memory(self) -> DeviceMemory:
        """Return what was given.

        Raises:
            RuntimeError: nothing was.
        """
        if self._memory is None:
            raise RuntimeError("an emulated accelerator has no memory of its own")
        return self._memory

    def peak(self, work: Callable[[], None], /) -> int:
        """Do ``work``; return what was given."""
        self.compute.launch(work)
        self.compute.record().wait()
        return self._peak


def _junk(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return _fill(torch.empty(tuple(shape), dtype=dtype))


def _fill(tensor: Tensor) -> Tensor:
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).fill_(_JUNK)
    return tensor


def _fill_after(events: Iterable[Event], memory: Tensor) -> None:
    for event in events:
        event.wait()
    _fill(memory)


def _other(part: Any) -> Any:
    """Return another tensor over the memory of one, which does not keep it; else what it is."""
    if not isinstance(part, Tensor) or not part.numel():
        return part
    empty = torch.empty(0, dtype=part.dtype)
    return empty.set_(part.untyped_storage(), part.storage_offset(), part.shape, part.stride())


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


class EmulatedSettings(LocalSettings):
    name: Literal["emulated"] = "emulated"  # type: ignore[assignment]
    pace: str = Field("late", description="when launched work is done: a key of PACES")


class EmulatedExecutor(LocalExecutor):
    """Launches, captures and collects steps on a CPU as on a GPU."""

    _options: EmulatedSettings

    def _make_accelerator(self, device: torch.device) -> Accelerator:
        return EmulatedAccelerator(pace=self._options.pace)


EMULATED_LOCAL = Component(
    "executor",
    EmulatedSettings,
    "emulation.accelerator:EmulatedExecutor",
    summary="local, as on a GPU",
)
