"""Pages of a cache that are there before they are written, counted by the kernel's own table."""

from __future__ import annotations

import errno
import mmap
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paged_backends.executors import page_populator
from paged_backends.executors.page_populator import (
    BlockMemory,
    PagePopulator,
    unpopulated_reason,
)
from paged_core.ids import BlockId, SeqId
from paged_core.sampling_params import SamplingParams
from paged_core.step import NewSequence, StepInput

MIB = 1 << 20
HUGE = 2 * MIB
LAYERS = 3
BLOCK = 32 << 10
"""Bytes of a block in one layer."""
BLOCKS = 512
"""In all: 16 MiB a layer."""
AHEAD = 8 * MIB
BLOCKS_AHEAD = AHEAD // (LAYERS * BLOCK)
IN_ORDER = [
    pytest.param((LAYERS, BLOCKS, BLOCK), 1, id="blocks of a layer together"),
    pytest.param((LAYERS, 2, BLOCKS, BLOCK // 2), 2, id="keys apart from values"),
    pytest.param((BLOCKS, LAYERS * BLOCK), 0, id="layers of a block together"),
]

needs_populating = pytest.mark.skipif(
    sys.platform != "linux" or unpopulated_reason() is not None,
    reason=f"nothing is populated here: {unpopulated_reason() if sys.platform == 'linux' else ''}",
)


def fresh(*shape: int, dim: int = 1) -> BlockMemory:
    """Memory never written, on huge pages as numpy asks for them; ``malloc`` might reuse some."""
    mapped = mmap.mmap(-1, prod(shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system built without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return BlockMemory(torch.frombuffer(mapped, dtype=torch.uint8).view(shape), dim)


def resident(memory: BlockMemory, begin: int = 0, end: int = BLOCKS) -> int:
    """Bytes of some blocks' pages that are in memory."""
    total = 0
    with Path("/proc/self/pagemap").open("rb") as table:
        for address, size in memory.ranges(begin, end):
            first = address // mmap.PAGESIZE
            last = (address + size - 1) // mmap.PAGESIZE
            table.seek(8 * first)
            entries = np.frombuffer(table.read(8 * (last + 1 - first)), np.uint64)
            total += int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE
    return total


def step(*added: int, edited: tuple[int, ...] = ()) -> StepInput:
    """A step that names these blocks."""
    new = NewSequence(
        id=SeqId(0),
        request_id="r",
        tokens=[1],
        num_prompt_tokens=1,
        num_computed=0,
        blocks=[BlockId(block) for block in added],
        sampling=SamplingParams(),
    )
    return StepInput(
        number=0,
        added=[new] if added else [],
        edit_ids=[SeqId(0)] * len(edited),
        edit_indices=list(range(len(edited))),
        edit_blocks=[BlockId(block) for block in edited],
    )


@pytest.fixture
def memory() -> BlockMemory:
    return fresh(LAYERS, BLOCKS, BLOCK)


@pytest.fixture
def populator(memory: BlockMemory) -> Iterator[PagePopulator]:
    made = PagePopulator([memory], BLOCKS, AHEAD)
    made.wait()
    yield made
    made.close()


def test_where_the_blocks_of_a_tensor_are() -> None:
    tensor = torch.arange(3 * 4 * 5 * 6, dtype=torch.int32).view(3, 4, 5, 6)
    for dim in range(4):
        found = BlockMemory(tensor, dim)
        assert found.block_bytes == tensor.nbytes // tensor.shape[dim]
        values = [
            (address - tensor.data_ptr()) // 4 + place
            for address, size in found.ranges(1, 3)
            for place in range(size // 4)
        ]
        assert values == tensor.narrow(dim, 1, 2).flatten().tolist()


@needs_populating
@pytest.mark.parametrize(("shape", "dim"), IN_ORDER)
def test_the_first_run_is_there_before_any_step(shape: tuple[int, ...], dim: int) -> None:
    memory = fresh(*shape, dim=dim)
    assert resident(memory) == 0
    populator = PagePopulator([memory], BLOCKS, AHEAD)
    populator.wait()
    assert resident(memory, 0, BLOCKS_AHEAD) >= BLOCKS_AHEAD * LAYERS * BLOCK
    ends = len(list(memory.ranges(0, 1)))
    assert resident(memory) <= AHEAD + 2 * ends * HUGE, (
        "more than the pages at both ends of a range"
    )
    assert not memory.tensor.any()
    populator.close()


@needs_populating
def test_a_bounded_run_stays_ahead_of_the_blocks_in_use(
    memory: BlockMemory, populator: PagePopulator
) -> None:
    before = resident(memory)
    for used in range(8, 200, 8):
        populator.follow(step(edited=tuple(range(used - 8, used))))
        populator.wait()
        slack = BLOCKS_AHEAD // 4
        assert resident(memory, used, used + BLOCKS_AHEAD - slack) >= (
            (BLOCKS_AHEAD - slack) * LAYERS * BLOCK
        )
        assert resident(memory) <= used * LAYERS * BLOCK + AHEAD + 2 * LAYERS * HUGE
    assert resident(memory) > before


@needs_populating
def test_blocks_far_above_those_populated_leave_out_what_lies_between(
    memory: BlockMemory, populator: PagePopulator
) -> None:
    populator.follow(step(0, 300))
    populator.wait()
    assert resident(memory, 301, 301 + BLOCKS_AHEAD) >= BLOCKS_AHEAD * LAYERS * BLOCK
    assert resident(memory) <= 2 * (AHEAD + 2 * LAYERS * HUGE)


@needs_populating
def test_what_was_written_stays(memory: BlockMemory, populator: PagePopulator) -> None:
    memory.tensor.fill_(7)
    populator.follow(step(200))
    populator.wait()
    assert (memory.tensor == 7).all()


def blocked(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event, list[int]]:
    """Have calls of the kernel wait; return when one has begun, what lets it go, and the calls."""
    begun, go, calls = threading.Event(), threading.Event(), []

    def populate(_: Any, address: int, size: int) -> int:
        calls.append(size)
        begun.set()
        assert go.wait(30)
        return 0

    monkeypatch.setattr(page_populator, "_populate_write", populate)
    return begun, go, calls


@needs_populating
def test_closing_ends_the_run_in_flight_and_its_thread(
    memory: BlockMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, calls = blocked(monkeypatch)
    populator = PagePopulator([memory], BLOCKS, AHEAD)
    assert begun.wait(30)
    closing = threading.Thread(target=populator.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive(), "it has to wait while the kernel may touch the memory"
    go.set()
    closing.join(30)
    assert not closing.is_alive()
    assert len(calls) == 1
    assert "page_populator" not in {thread.name for thread in threading.enumerate()}
    populator.follow(step(300))
    assert len(calls) == 1
    populator.close()


@needs_populating
def test_a_step_does_not_wait_and_its_blocks_are_followed_later(
    memory: BlockMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, calls = blocked(monkeypatch)
    populator = PagePopulator([memory], BLOCKS, AHEAD)
    assert begun.wait(30)
    populator.follow(step(100))
    go.set()
    populator.wait()
    first = sum(calls)
    assert first == BLOCKS_AHEAD * LAYERS * BLOCK
    populator.follow(step())
    populator.wait()
    assert sum(calls) == 2 * first
    populator.close()


@needs_populating
def test_the_last_blocks_are_reached_and_not_passed(
    memory: BlockMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, go, calls = blocked(monkeypatch)
    go.set()
    end = BLOCKS - 16
    populator = PagePopulator([memory], end, AHEAD)
    for used in (end - BLOCKS_AHEAD - 3, end - BLOCKS_AHEAD, end - 1):
        populator.wait()
        populator.follow(step(used))
    populator.close()
    assert sum(calls) == (2 * BLOCKS_AHEAD + 2) * LAYERS * BLOCK


@needs_populating
def test_a_refusal_of_the_kernel_is_final_and_harms_nothing(
    memory: BlockMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def refuse(_: Any, address: int, size: int) -> int:
        calls.append(address)
        return errno.EINVAL

    monkeypatch.setattr(page_populator, "_populate_write", refuse)
    populator = PagePopulator([memory], BLOCKS, AHEAD)
    populator.wait()
    populator.follow(step(100))
    populator.close()
    assert len(calls) == 1


def test_why_a_machine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_populator, "_populate_write", lambda *_: errno.EINVAL)
    monkeypatch.setattr(page_populator, "_madvise", lambda: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "glob", lambda *_: iter([Path("node0")]))
    assert "MADV_POPULATE_WRITE" in (unpopulated_reason() or "")
    monkeypatch.setattr(Path, "glob", lambda *_: iter([Path("node0"), Path("node1")]))
    assert "2 memory nodes" in (unpopulated_reason() or "")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "darwin" in (unpopulated_reason() or "")
