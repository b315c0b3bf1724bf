"""Calls of ``torch.cuda``, without a GPU; ``tests/gpu`` has its answers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from integration import tiny_models
from integration.step_driver import (
    StepDriver,
    load_runner,
    make_executor,
    run_at_random,
    settings,
)
from paged_backends.executors import cuda_accelerator
from paged_backends.executors.cuda_accelerator import CudaAccelerator
from paged_backends.executors.local import LocalExecutor
from paged_core.errors import SettingsError
from unit.capturable_attention import CapturableAttention

pytestmark = pytest.mark.heavy
CPU = torch.device("cpu")


class FakeStream:
    """A stream that runs at once; what is called is noted."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.device, self._notes = name, CPU, notes

    def wait_event(self, event: FakeEvent) -> None:
        assert event.stream is not None, "the event was not recorded"
        self._notes.append(f"{self.name} waits for {event.stream.name}")


class FakeEvent:
    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self.stream: FakeStream | None = None

    def record(self, stream: FakeStream) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        assert self.stream is not None, "the event was not recorded"
        self._notes.append("host waits")


def install(patch: pytest.MonkeyPatch, *, register: int = 0) -> list[str]:
    """Put the part of ``torch.cuda`` that the accelerator uses in place of that of a GPU; return
    the notes that are taken.

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
        graph: Any, *, pool: str, stream: FakeStream, capture_error_mode: str
    ) -> Iterator[None]:
        notes.append(f"capture in {pool} on {stream.name}, {capture_error_mode}")
        before, current[0] = current[0], stream
        try:
            yield
        except Exception as error:  # PyTorch raises another one, and leaves the stream as it is
            raise RuntimeError("a previous error during capture") from error
        current[0] = before

    def host_register(address: int, size: int, flags: int) -> int:
        assert address
        assert flags == 0
        notes.append(f"register {size}")
        return register

    runtime = SimpleNamespace(
        cudaHostRegister=host_register,
        cudaHostUnregister=lambda address: notes.append("unregister"),
    )
    fakes: dict[str, Any] = {
        "current_stream": lambda device: current[0],
        "Stream": lambda device: FakeStream(next(others), notes),
        "Event": lambda: FakeEvent(notes),
        "stream": on,
        "graph_pool_handle": lambda: "pool",
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: notes.append("replay")),
        "graph": capture,
        "synchronize": lambda device: notes.append("synchronize"),
        "empty_cache": lambda: notes.append("empty cache"),
        "memory_allocated": lambda device: next(allocated),
        "max_memory_allocated": lambda device: 130,
        "reset_peak_memory_stats": lambda device: notes.append("reset peak"),
        "cudart": lambda: runtime,
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


def test_work_is_called_at_once_on_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = install(monkeypatch)
    accelerator = CudaAccelerator(CPU)
    accelerator.transfers.launch(lambda: notes.append("copied"))
    accelerator.compute.follow(accelerator.transfers.record())
    accelerator.compute.launch(lambda: notes.append("computed"))
    accelerator.compute.record().wait()
    assert notes == [
        *("on transfers", "copied", "compute waits for transfers"),
        *("on compute", "computed", "host waits"),
    ]
    notes.clear()
    lent = Mock()
    assert accelerator.transfers.empty((2, 3), torch.float16).shape == (2, 3)
    accelerator.compute.borrow(lent)
    (used,) = lent.record_stream.call_args.args
    assert used.name == "compute"
    accelerator.transfers.launch(lambda: notes.append(str(accelerator.upload(np.array([3])))))
    assert notes == ["on transfers", "on transfers", "on compute", "tensor([3])"]


def test_graphs_share_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = install(monkeypatch)
    accelerator, output = CudaAccelerator(CPU), torch.zeros(2)
    graph = accelerator.capture(lambda: output)
    assert graph.output is output
    graph.replay()
    captured = ["on compute", "capture in pool on captures, thread_local"]
    assert notes == ["synchronize", *captured, "replay"]


def test_a_capture_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = install(monkeypatch)
    accelerator = CudaAccelerator(CPU)

    def wait() -> torch.Tensor:
        assert torch.cuda.current_stream(CPU).name == "captures"  # type: ignore[attr-defined]
        raise RuntimeError("it waits for the device")

    with pytest.raises(RuntimeError, match="it waits for the device"):
        accelerator.capture(wait)
    assert torch.cuda.current_stream(CPU).name == "compute"  # type: ignore[attr-defined]
    assert notes[-2:] == ["end allocating in pool", "release pool"]
    notes.clear()
    ended = Mock(side_effect=RuntimeError("not currently recording"))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", ended)
    with pytest.raises(ZeroDivisionError):
        accelerator.capture(lambda: torch.zeros(1 // 0))
    assert "release pool" not in notes, "it was ended already"


def test_memory_and_the_peak_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = install(monkeypatch)
    monkeypatch.setattr(cuda_accelerator, "total_memory", lambda device: 1000)
    monkeypatch.setattr(cuda_accelerator, "free_memory", lambda device: 60)
    accelerator = CudaAccelerator(CPU)
    assert accelerator.peak(lambda: notes.append("work")) == 30
    assert notes == ["synchronize", "reset peak", "on compute", "work", "synchronize"]
    memory = accelerator.memory()
    assert (memory.total, memory.free, notes[-1]) == (1000, 60, "empty cache")


def test_a_large_host_pool_is_registered_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = install(monkeypatch)
    monkeypatch.setattr(cuda_accelerator, "_REGISTERED_FROM", 4096)
    pool = CudaAccelerator(CPU).pinned((32, 64), torch.float32)
    assert (pool.shape, pool.dtype, notes) == ((32, 64), torch.float32, ["register 8192"])
    part = pool[3:5]
    del pool
    gc.collect()
    assert notes == ["register 8192"]
    del part
    gc.collect()
    assert notes == ["register 8192", "unregister"]
    install(monkeypatch, register=2)
    with pytest.raises(SettingsError, match=r"1 MiB of memory cannot be pinned.*answered 2"):
        CudaAccelerator(CPU).pinned((1 << 20,), torch.uint8)


def use_fakes(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> CudaAccelerator:
    """Let an executor on a CPU have an accelerator over the fakes."""
    accelerator = CudaAccelerator(CPU)
    pinned = torch.empty
    monkeypatch.setattr(accelerator, "pinned", lambda shape, dtype: pinned(shape, dtype=dtype))
    for stream in (accelerator.compute, accelerator.transfers):
        monkeypatch.setattr(stream, "borrow", lambda tensor: None)
    monkeypatch.setattr(executor, "_make_accelerator", lambda device: accelerator)
    return accelerator


def test_steps_run_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole schedule, with swaps, on streams that run at once."""
    folder = tiny_models.save("llama", tmp_path)
    expected = tiny_models.generate(folder, tiny_models.PROMPTS, 5)
    install(monkeypatch)
    executor = make_executor(
        settings(folder, block_size=4, num_blocks=40, max_model_len=48), needs_host_blocks=True
    )
    use_fakes(executor, monkeypatch)
    assert run_at_random(StepDriver(executor, 4, seed=2), tiny_models.PROMPTS, 5) == expected
    assert executor.runs_in_background


def test_graphs_are_warmed_up_and_captured_on_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is current: a stream of another device, say."""
    notes, seen = install(monkeypatch), list[str]()
    chosen = settings(
        tiny_models.save("llama", tmp_path), block_size=4, num_blocks=40, max_model_len=48
    )
    runner = load_runner(chosen)
    forward = runner.forward

    def watched(*arguments: Any) -> torch.Tensor:
        seen.append(torch.cuda.current_stream(CPU).name)  # type: ignore[attr-defined]
        return forward(*arguments)

    monkeypatch.setattr(runner, "forward", watched)
    backend = CapturableAttention()
    executor = make_executor(chosen, runner=runner, attention=backend)
    use_fakes(executor, monkeypatch)
    with torch.cuda.stream(FakeStream("other", notes)):  # type: ignore[arg-type]
        executor.start()
    sizes = [8, 4, 2, 1]
    assert backend.captured == sizes
    assert seen == ["compute", "captures"] * len(sizes)
