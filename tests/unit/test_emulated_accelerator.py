"""The emulated accelerator makes mistakes in the order of work visible."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from paged_backends.executors.accelerator import PinnedBuffers
from paged_backends.executors.emulated_accelerator import EmulatedAccelerator

JUNK = 0x7F7F7F7F7F7F7F7F


def test_work_is_done_when_it_is_awaited_in_the_order_of_its_launches() -> None:
    compute, done = EmulatedAccelerator().compute, list[int]()
    compute.launch(lambda: done.append(1))
    first = compute.record()
    compute.launch(lambda: done.append(2))
    assert done == []
    first.wait()
    assert done == [1]
    compute.record().wait()
    first.wait()
    assert done == [1, 2]


def test_a_stream_waits_for_another_only_where_it_was_told_to() -> None:
    accelerator, done = EmulatedAccelerator(), list[str]()
    compute, transfers = accelerator.compute, accelerator.transfers
    compute.launch(lambda: done.append("compute"))
    transfers.launch(lambda: done.append("early"))
    transfers.follow(compute.record())
    transfers.launch(lambda: done.append("late"))
    compute.launch(lambda: done.append("not awaited"))
    transfers.record().wait()
    assert done == ["early", "compute", "late"]


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        ("late", []),
        ("compute early", ["a", "b"]),
        ("transfers early", ["copy", "a", "copy"]),
    ],
)
def test_a_stream_that_is_early_does_what_it_waits_for(pace: str, expected: list[str]) -> None:
    accelerator, done = EmulatedAccelerator(pace=pace), list[str]()
    compute, transfers = accelerator.compute, accelerator.transfers
    transfers.launch(lambda: done.append("copy"))
    compute.launch(lambda: done.append("a"))
    transfers.follow(compute.record())
    transfers.launch(lambda: done.append("copy"))
    compute.launch(lambda: done.append("b"))
    assert done == expected


@pytest.mark.parametrize("is_borrowed", [True, False])
def test_an_upload_that_another_stream_reads_is_reused_unless_it_is_borrowed(
    is_borrowed: bool,
) -> None:
    accelerator, copy = EmulatedAccelerator(), torch.zeros(2, dtype=torch.int64)
    compute, transfers = accelerator.compute, accelerator.transfers
    memory = accelerator.upload(np.array([5, 5]))
    transfers.follow(compute.record())
    transfers.launch(partial(torch.Tensor.copy_, copy, memory))
    if is_borrowed:
        transfers.borrow(memory)
    del memory
    compute.record().wait()
    transfers.record().wait()
    assert copy.tolist() == [5 if is_borrowed else JUNK] * 2


@pytest.mark.parametrize("is_borrowed", [True, False])
def test_memory_that_is_dropped_is_reused_unless_it_is_borrowed(is_borrowed: bool) -> None:
    accelerator = EmulatedAccelerator()
    compute, transfers = accelerator.compute, accelerator.transfers
    memory, copy = compute.empty((2,), torch.int64), torch.zeros(2, dtype=torch.int64)
    compute.launch(partial(torch.Tensor.fill_, memory, 5))
    transfers.follow(compute.record())
    transfers.launch(partial(torch.Tensor.copy_, copy, memory))
    if is_borrowed:
        transfers.borrow(memory)
    del memory
    compute.record().wait()
    transfers.record().wait()
    assert copy.tolist() == [5 if is_borrowed else JUNK] * 2


def test_what_raises_is_raised_where_it_is_awaited_and_the_rest_goes_on() -> None:
    compute, done = EmulatedAccelerator().compute, list[int]()

    def fail() -> None:
        raise RuntimeError("an illegal address")

    compute.launch(fail)
    compute.launch(lambda: done.append(0))
    failed = compute.record()
    compute.launch(lambda: done.append(1))
    with pytest.raises(RuntimeError, match="an illegal address"):
        failed.wait()
    compute.record().wait()
    assert done == [1]


def test_an_upload_is_of_what_the_array_held_and_junk_until_it_is_done() -> None:
    accelerator, array = EmulatedAccelerator(), np.arange(3)
    tensor = accelerator.upload(array)
    array[:] = 9
    assert tensor.tolist() == [JUNK] * 3
    accelerator.compute.record().wait()
    assert tensor.tolist() == [0, 1, 2]


def test_a_pinned_buffer_that_is_taken_again_holds_junk() -> None:
    buffers = PinnedBuffers(EmulatedAccelerator(), 2, torch.int64)
    first, other = buffers.take(), buffers.take()
    assert first.data_ptr() != other.data_ptr()
    first.fill_(5)
    buffers.give_back(first)
    assert buffers.take() is first
    assert first.tolist() == [JUNK] * 2


def test_a_graph_works_over_the_tensors_of_its_capture_and_its_output_stays_in_place() -> None:
    accelerator, inputs = EmulatedAccelerator(), torch.tensor([1, 2])
    graph = accelerator.capture(lambda inputs=inputs: inputs + 1)  # type: ignore[misc]
    other = accelerator.capture(lambda inputs=inputs: inputs * 2)  # type: ignore[misc]
    output = graph.output
    inputs.copy_(torch.tensor([5, 6]))
    graph.replay()
    assert output.tolist() == [6, 7]
    assert graph.output is output
    other.replay()
    assert output.tolist() == [JUNK] * 2, "graphs share their memory"


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x * x.max().item(),
        lambda x: x if x.any() else -x,
        lambda x: x[x > 1],
        lambda x: x[(x > 1).nonzero()],
    ],
)
def test_what_waits_for_the_device_cannot_be_captured(wait: Any) -> None:
    with pytest.raises(RuntimeError, match="waits for the device, and cannot be captured"):
        EmulatedAccelerator().capture(partial(wait, torch.tensor([1, 2])))


def test_a_graph_does_what_was_captured_not_what_python_would_do_now() -> None:
    numbers, factor = torch.tensor([1, 2, 3]), [2]
    graph = EmulatedAccelerator().capture(lambda: numbers[: factor[0]] * factor[0])
    graph.replay()
    assert graph.output.tolist() == [2, 4]
    factor[0] = 3
    with pytest.raises(RuntimeError, match=r"a graph would do .*, and its work is now "):
        graph.replay()


def test_memory_is_known_only_if_it_was_given() -> None:
    accelerator = EmulatedAccelerator()
    assert not accelerator.measures_memory
    with pytest.raises(RuntimeError, match="no memory of its own"):
        accelerator.memory()
