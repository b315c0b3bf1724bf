"""The streams, events, graphs and pinned memory of a device, on which steps are launched.

Work is launched as a function. A GPU calls it at once, and it returns when the kernels are queued;
an emulation may keep it and call it when its result is awaited. So a launched function uses tensors
that exist already, and nothing on the host that changes afterwards. A CPU, which has no streams,
does at once what is launched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.device import free_memory, to_device, total_memory


class Event(Protocol):
    """A point in the work of a stream."""

    def wait(self) -> None:
        """Let the host wait until the stream has got there; raise what its work raised."""


class Stream(ABC):
    """A queue of work, done in the order of its launches."""

    @abstractmethod
    def launch(self, work: Callable[[], None], /) -> None:
        """Queue ``work``."""

    @abstractmethod
    def record(self) -> Event:
        """Return the point after all that was launched so far."""

    @abstractmethod
    def follow(self, event: Event, /) -> None:
        """Begin what is launched from now on when the stream of ``event`` has got there."""

    @abstractmethod
    def empty(self, shape: Sequence[int], dtype: torch.dtype, /) -> Tensor:
        """Return memory of the device for this stream's work, with any content."""

    @abstractmethod
    def borrow(self, tensor: Tensor, /) -> None:
        """Keep memory of another stream's :meth:`empty` until what was launched so far is done."""


class Graph(Protocol):
    """Captured work."""

    output: Tensor
    """Result of the work: the same tensor for every replay, good until any graph of the
    accelerator is replayed."""

    def replay(self) -> None:
        """Do the work again over the tensors that it was captured with; to be launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Bytes of a device."""

    total: int
    free: int


class Accelerator(ABC):
    """A device, as an executor uses it."""

    runs_ahead: bool
    """True if launched work runs while the host goes on, so that it pays to plan ahead."""
    measures_memory: bool
    """True if :meth:`peak` can tell."""
    compute: Stream
    """Stream that computes: the current one of the thread that made the accelerator."""
    transfers: Stream
    """Stream that copies between host and device beside it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def upload(self, array: NDArray[Any], /) -> Tensor:
        """Return a copy on the device, made by :attr:`compute`, for work that is launched later."""

    @abstractmethod
    def pinned(self, shape: Sequence[int], dtype: torch.dtype, /) -> Tensor:
        """Return memory of the host that the device can copy to and from by itself."""

    @abstractmethod
    def reuse(self, buffer: Tensor, /) -> None:
        """Called before pinned memory is written anew, when no work should need it any more."""

    @abstractmethod
    def capture(self, work: Callable[[], Tensor], /) -> Graph:
        """Capture ``work``, which was done once before, and uses the same memory every time.

        Raises:
            RuntimeError: it cannot be captured: it waits for the device, say.
        """

    @abstractmethod
    def memory(self) -> DeviceMemory:
        """Return what the device has, and what is free of it."""

    @abstractmethod
    def peak(self, work: Callable[[], None], /) -> int:
        """Do ``work`` and wait for it; return the most bytes that it held at once."""


class PinnedBuffers:
    """As many buffers as there are steps in flight."""

    def __init__(self, accelerator: Accelerator, size: int, dtype: torch.dtype) -> None:
        """``size``: numbers in a buffer."""
        self._accelerator = accelerator
        self._size = size
        self._dtype = dtype
        self._free: list[Tensor] = []

    def take(self) -> Tensor:
        """Return a buffer [size] with undefined content."""
        if not self._free:
            return self._accelerator.pinned((self._size,), self._dtype)
        buffer = self._free.pop()
        self._accelerator.reuse(buffer)
        return buffer

    def give_back(self, buffer: Tensor) -> None:
        """Let another step have it: the work that used it is done."""
        self._free.append(buffer)


class ModelTimer:
    """Measures from its creation to :meth:`stop`.

    On a GPU it records two events in the current stream, since the host only launches the work.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._started = perf_counter()
        self._stopped = self._started
        if self._on_gpu:
            make_event: Any = torch.cuda.Event
            self._first, self._last = (make_event(enable_timing=True) for _ in range(2))
            self._stream = torch.cuda.current_stream(device)
            self._first.record(self._stream)

    def stop(self) -> None:
        """Mark the end of the work that was launched."""
        self._stopped = perf_counter()
        if self._on_gpu:
            self._last.record(self._stream)

    def seconds(self) -> float:
        """Return the time of the device if it has finished the work, else that of the host.

        A step that reads a token back has waited for the device by then.
        """
        if self._on_gpu and self._last.query():
            return float(self._first.elapsed_time(self._last)) / 1000
        return self._stopped - self._started


class _Done:
    """All that was launched before it is done."""

    def wait(self) -> None:
        """Return."""


class _AtOnce(Stream):
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def launch(self, work: Callable[[], None], /) -> None:
        work()

    def record(self) -> Event:
        return _Done()

    def follow(self, event: Event, /) -> None:
        event.wait()

    def empty(self, shape: Sequence[int], dtype: torch.dtype, /) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=self._device)

    def borrow(self, tensor: Tensor, /) -> None:
        pass


class HostDevice(Accelerator):
    """A CPU, or a device that is used like one."""

    runs_ahead = False
    measures_memory = False

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.compute = self.transfers = _AtOnce(device)

    def upload(self, array: NDArray[Any], /) -> Tensor:
        """Return a tensor that shares the memory of ``array`` on a CPU."""
        return to_device(array, self.device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype, /) -> Tensor:
        """Return ordinary memory."""
        return torch.empty(tuple(shape), dtype=dtype)

    def reuse(self, buffer: Tensor, /) -> None:
        """Do nothing: there is no work that could need it."""

    def capture(self, work: Callable[[], Tensor], /) -> Graph:
        """Raise: there are no graphs here."""
        raise RuntimeError(f"{self.device} has no graphs")

    def memory(self) -> DeviceMemory:
        """Return that of the machine, or of the container."""
        return DeviceMemory(total=total_memory(self.device), free=free_memory(self.device))

    def peak(self, work: Callable[[], None], /) -> int:
        """Raise: what a CPU allocates is not counted."""
        raise RuntimeError(f"the memory that work takes is not measured on {self.device}")
