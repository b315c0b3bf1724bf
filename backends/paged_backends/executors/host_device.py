"""A CPU as an accelerator, which does at once what is launched; and the clock of a model's work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.device import free_memory, total_memory
from paged_backends.executors.accelerator import Accelerator, DeviceMemory, Event, Graph, Stream


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
        return torch.from_numpy(array).to(self.device)

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
