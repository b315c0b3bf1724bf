"""An NVIDIA GPU as an accelerator."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.device import free_memory, to_device, total_memory
from paged_backends.executors.accelerator import Accelerator, DeviceMemory, Event, Stream
from paged_core.errors import SettingsError

_REGISTERED_FROM = 1 << 26
"""Bytes of pinned memory from which it is registered: PyTorch's own rounds up to a power of two."""


class CudaEvent:
    """A point in a CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        make: Any = torch.cuda.Event
        self.event = make()
        self.event.record(stream)

    def wait(self) -> None:
        """Let the host wait."""
        self.event.synchronize()


class CudaStream(Stream):
    """A CUDA stream; launched work is called at once, and queues its kernels."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self.on: Callable[[], Any] = lambda: torch.cuda.stream(stream)
        """Makes it the current stream, in a ``with`` statement."""

    def launch(self, work: Callable[[], None], /) -> None:
        """Call ``work`` with this as the current stream."""
        with self.on():
            work()

    def record(self) -> CudaEvent:
        """Record an event."""
        return CudaEvent(self._stream)

    def follow(self, event: Event, /) -> None:
        """Let the stream wait, not the host."""
        self._stream.wait_event(cast("CudaEvent", event).event)

    def empty(self, shape: Sequence[int], dtype: torch.dtype, /) -> Tensor:
        """Return memory that PyTorch's allocator reserves for this stream."""
        with self.on():
            return torch.empty(tuple(shape), dtype=dtype, device=self._stream.device)

    def borrow(self, tensor: Tensor, /) -> None:
        """Let the allocator wait for this stream before it reuses the memory."""
        tensor.record_stream(self._stream)


class CudaGraph:
    """A CUDA graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self.output = output
        self._graph = graph

    def replay(self) -> None:
        """Queue it in the current stream."""
        self._graph.replay()


class CudaAccelerator(Accelerator):
    """One CUDA device."""

    runs_ahead = True
    measures_memory = True
    compute: CudaStream

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.compute = CudaStream(torch.cuda.current_stream(device))
        make: Any = torch.cuda.Stream
        self.transfers = CudaStream(make(device))
        self._captures: Any = make(device)  # PyTorch's own is of the device that captured first
        self._pool: Any = torch.cuda.graph_pool_handle()

    def upload(self, array: NDArray[Any], /) -> Tensor:
        """Copy through pinned memory."""
        with self.compute.on():
            return to_device(array, self.device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype, /) -> Tensor:
        """Return pinned memory, of which a large piece is registered."""
        num_bytes = prod(shape) * dtype.itemsize
        if num_bytes < _REGISTERED_FROM:
            return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)
        array = np.zeros(num_bytes, np.uint8)
        _register(array)
        return torch.from_numpy(array).view(dtype).view(tuple(shape))

    def reuse(self, buffer: Tensor, /) -> None:
        """Do nothing."""

    def capture(self, work: Callable[[], Tensor], /) -> CudaGraph:
        """Capture ``work`` in a CUDA graph; all graphs share one memory pool.

        PyTorch does not end a capture that CUDA has given up: its stream stays the current one, and
        the allocator goes on as in a capture. Both are put right.
        """
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        options: dict[str, Any] = {"pool": self._pool, "stream": self._captures}
        causes: list[Exception] = []
        try:
            with (
                self.compute.on(),
                torch.cuda.graph(graph, capture_error_mode="thread_local", **options),
            ):
                try:
                    output = work()
                except Exception as error:
                    causes.append(error)
                    raise
        except Exception as error:  # noqa: BLE001 - raised again, or what it followed from
            self._end_capture()
            causes.append(error)  # the end of a capture says less than what broke it
            raise causes[0] from None
        return CudaGraph(graph, output)

    def _end_capture(self) -> None:
        """Let the allocator know that a capture has ended, if it does not."""
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.device.index, self._pool)
            torch._C._cuda_releasePool(self.device.index, self._pool)

    def memory(self) -> DeviceMemory:
        """Return the memory once PyTorch has given back what it holds and does not use."""
        gc.collect()
        torch.cuda.empty_cache()
        return DeviceMemory(total=total_memory(self.device), free=free_memory(self.device))

    def peak(self, work: Callable[[], None], /) -> int:
        """Return how far PyTorch's allocations rose above what they were before."""
        torch.cuda.synchronize(self.device)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.compute.launch(work)
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before


def _register(array: NDArray[np.uint8]) -> None:
    """Pin the memory of ``array`` for as long as it lives.

    Raises:
        SettingsError: the system refuses.
    """
    make: Any = torch.cuda.cudart
    runtime = make()
    address = array.ctypes.data
    code = int(runtime.cudaHostRegister(address, array.nbytes, 0))
    if code:
        raise SettingsError(
            f"num_host_blocks: {array.nbytes >> 20} MiB of memory cannot be pinned "
            f"(cudaHostRegister answered {code}); lower num_host_blocks"
        )
    weakref.finalize(array, runtime.cudaHostUnregister, address).atexit = False
