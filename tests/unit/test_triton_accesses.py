"""Interpreted Triton kernels use no memory but their tensors', and programs run in any order."""

# ruff: noqa: N803 - numbers that are fixed at the compilation are upper-case

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paged_backends.kernels.triton.availability import is_interpreted

if not is_interpreted():
    pytest.skip("there is a GPU, and Triton interprets nothing", allow_module_level=True)

import triton
import triton.language as tl

from paged_backends.attention.triton_layer import TritonLayer
from unit.attention_calls import check
from unit.test_triton_faults import SCENES, SMALL, run
from unit.triton_accesses import watched
from unit.triton_kernels import H200, LaunchedFor, scene


@triton.jit
def add_one(numbers, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(numbers + place, tl.load(numbers + place, mask=place < size) + 1, mask=place < size)


@triton.jit
def add_previous(numbers):
    place = tl.program_id(0)
    tl.store(numbers + place + 1, tl.load(numbers + place) + 1)


def test_memory_beside_a_tensor_is_not_there() -> None:
    numbers = torch.zeros(10)
    with watched():
        add_one[(2,)](numbers[:6], 6, BLOCK=4)
        assert numbers.tolist() == [1.0] * 6 + [0.0] * 4
        for call in (
            lambda: add_one[(2,)](numbers[:6], 7, BLOCK=4),
            lambda: add_one[(1,)](numbers[1:3], 3, BLOCK=4),
        ):
            with pytest.raises(Exception, match=r"4 B at 0x[0-9a-f]+ are read, and no tensor"):
                call()


def test_a_program_that_needs_another_one_shows_when_they_run_backwards() -> None:
    found = {}
    for backwards in (False, True):
        numbers = torch.zeros(4)
        with watched(backwards=backwards):
            add_previous[(3,)](numbers)
        found[backwards] = numbers.tolist()
    assert found == {False: [0, 1, 2, 3], True: [0, 1, 1, 1]}


@pytest.mark.parametrize("name", SCENES)
def test_attention_in_any_order(name: str) -> None:
    with watched(backwards=True):
        run(TritonLayer, name)


def test_a_sequence_of_few_splits_beside_one_of_many() -> None:
    """Each split that nothing was computed for holds NaN."""
    with watched():
        check(scene(LaunchedFor(H200), SMALL, [(530, 1), (20, 1)]))


def test_a_query_that_sees_nothing_of_a_tile() -> None:
    """The window of a later one begins behind the first tile of keys."""
    with watched():
        check(scene(LaunchedFor(None), replace(SMALL, sliding_window=7), [(200, 100)]))
