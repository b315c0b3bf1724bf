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
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor


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
