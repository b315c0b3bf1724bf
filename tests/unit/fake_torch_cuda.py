"""The part of ``torch.cuda`` that the accelerator uses, in the place of a device that is not there.

Streams run at once. What is called is noted; wrong names and arguments are refused, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

CPU = torch.device("cpu")


class FakeEvent:
    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self.stream: FakeStream | None = None

    def record(self, stream: FakeStream) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        assert self.stream is not None, "the event was not recorded"
        self._notes.append("host waits")


class FakeStream:
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.device = CPU
        self._notes = notes

    def wait_event(self, event: FakeEvent) -> None:
        assert event.stream is not None, "the event was not recorded"
        self._notes.append(f"{self.name} waits for {event.stream.name}")


class FakeTensor:
    """Memory that a stream of the allocator is told of."""

    def __init__(self) -> None:
        self.streams: list[FakeStream] = []

    def record_stream(self, stream: FakeStream) -> None:
        self.streams.append(stream)


class FakeGraph:
    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def replay(self) -> None:
        self._notes.append("replay")


class FakeRuntime:
    """``cudaHostRegister`` and its counterpart."""

    def __init__(self, code: int, notes: list[str]) -> None:
        self._code = code
        self._notes = notes

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        assert address
        assert flags == 0
        self._notes.append(f"register {size}")
        return self._code

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802
        assert address
        self._notes.append("unregister")


def install(patch: pytest.MonkeyPatch, *, register: int = 0) -> list[str]:
    """Put the fakes in place; return the notes that they take.

    Args:
        register: what ``cudaHostRegister`` answers.
    """
    notes: list[str] = []
    allocated = iter((100, 100))
    current = [FakeStream("compute", notes)]
    others = iter(("transfers", "captures"))

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        notes.append(f"on {stream.name}")
        before, current[0] = current[0], stream
        try:
            yield
        finally:
            current[0] = before

    @contextmanager
    def capture(
        graph: FakeGraph, *, pool: str, stream: FakeStream, capture_error_mode: str
    ) -> Iterator[None]:
        assert isinstance(graph, FakeGraph)
        notes.append(f"capture in {pool} on {stream.name}, {capture_error_mode}")
        before, current[0] = current[0], stream
        try:
            yield
        except Exception as error:  # PyTorch raises another one, and leaves the stream as it is
            raise RuntimeError("a previous error during capture") from error
        current[0] = before

    fakes: dict[str, Any] = {
        "current_stream": lambda device: current[0],
        "Stream": lambda device: FakeStream(next(others), notes),
        "Event": lambda: FakeEvent(notes),
        "stream": on,
        "graph_pool_handle": lambda: "pool",
        "CUDAGraph": lambda: FakeGraph(notes),
        "graph": capture,
        "synchronize": lambda device: notes.append("synchronize"),
        "empty_cache": lambda: notes.append("empty cache"),
        "memory_allocated": lambda device: next(allocated),
        "max_memory_allocated": lambda device: 130,
        "reset_peak_memory_stats": lambda device: notes.append("reset peak"),
        "mem_get_info": lambda device: (60, 1000),
        "cudart": lambda: FakeRuntime(register, notes),
    }
    for name, fake in fakes.items():
        patch.setattr(torch.cuda, name, fake)
    ends = {
        "_cuda_endAllocateToPool": lambda device, pool: notes.append(f"end allocating in {pool}"),
        "_cuda_releasePool": lambda device, pool: notes.append(f"release {pool}"),
    }
    for name, end in ends.items():
        patch.setattr(torch._C, name, end, raising=False)
    return notes
