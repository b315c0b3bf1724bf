"""A device without streams: what is launched is done at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.device import free_memory, to_device, total_memory
from paged_backends.executors.accelerator import Accelerator, DeviceMemory, Event, Graph, Stream


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
