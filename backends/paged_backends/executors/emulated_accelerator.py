"""An accelerator emulated on a CPU, for tests: it makes mistakes in the order of work visible.

Launched work is kept until it is awaited, stream by stream, so that a result read too early, or a
copy that no event orders, is found. Memory with undefined content holds junk. A graph does its work
over the tensors of its capture, whatever the executor has put in their place since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.executors.accelerator import Accelerator, DeviceMemory, Event, Stream

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


class EmulatedStream(Stream):
    """Keeps its work until an event is awaited."""

    def __init__(self) -> None:
        self._pending: deque[Callable[[], None]] = deque()
        self._num_launched = 0
        self._num_begun = 0

    def launch(self, work: Callable[[], None], /) -> None:
        """Keep ``work``."""
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
        """Return junk."""
        return _junk(shape, dtype)

    def borrow(self, tensor: Tensor, /) -> None:
        """Do nothing: work that is kept keeps its tensors."""


class EmulatedGraph:
    """Work, and the tensor that it returned when it was captured."""

    def __init__(self, work: Callable[[], Tensor], siblings: list[EmulatedGraph]) -> None:
        self._work = work
        self._siblings = siblings
        self.output = work().clone()

    def replay(self) -> None:
        """Do the work; the outputs of all other graphs are lost, for they share their memory."""
        for graph in self._siblings:
            _fill(graph.output)
        self.output.copy_(self._work())


class EmulatedAccelerator(Accelerator):
    """A CPU in the place of a GPU."""

    runs_ahead = True
    compute: EmulatedStream
    transfers: EmulatedStream

    def __init__(self, *, memory: DeviceMemory | None = None, peak: int = 0) -> None:
        """
        Args:
            memory: what :meth:`memory` returns; ``None``: it is not known.
            peak: bytes that any work is said to take.
        """
        super().__init__(torch.device("cpu"))
        self.compute, self.transfers = EmulatedStream(), EmulatedStream()
        self._graphs: list[EmulatedGraph] = []
        self._memory = memory
        self.measures_memory = memory is not None
        self._peak = peak

    def upload(self, array: NDArray[Any], /) -> Tensor:
        """Return junk that becomes a copy of ``array``, as it is now."""
        source = torch.from_numpy(array.copy())
        tensor = _junk(source.shape, source.dtype)
        self.compute.launch(lambda: _copy(tensor, source))
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


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)
