"""Blocks of many caches are copied in one launch, all read before any is written."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import find_compiler
from paged_backends.kernels.cuda.emulation import EmulatedModule
from paged_backends.kernels.cuda.kernel import BlockCopier

CPU = torch.device("cpu")
NUM_BLOCKS = 9
SHAPES = [(2, 3, 16, 8), (2, 1, 5, 8)]
"""A block of the second has no multiple of 16 bytes."""

pytestmark = pytest.mark.skipif(
    isinstance(find_compiler(), CannotCompile), reason="there is no C++ compiler"
)


@cache
def copier(*, checked: bool = False) -> BlockCopier:
    return BlockCopier(EmulatedModule.load(checked=checked), CPU)


def caches(count: int) -> list[Tensor]:
    dtypes = (torch.bfloat16, torch.float32, torch.uint8)
    return [
        torch.randint(0, 200, (NUM_BLOCKS, *SHAPES[place % 2])).to(dtypes[place % 3])
        for place in range(count)
    ]


def copied(
    sources: list[Tensor], origins: list[int], targets: list[Tensor], destinations: list[int]
) -> list[Tensor]:
    """What torch makes of it."""
    expected = [target.clone() for target in targets]
    for source, target in zip(sources, expected, strict=True):
        target[destinations] = source[origins].clone()
    return expected


@given(
    count=st.integers(1, 5),
    origins=st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=NUM_BLOCKS),
    places=st.permutations(range(NUM_BLOCKS)),
    within=st.booleans(),
)
def test_blocks_of_all_caches_are_copied(
    count: int, origins: list[int], places: list[int], within: bool
) -> None:
    destinations = places[: len(origins)]
    sources = caches(count)
    targets = sources if within else caches(count)
    expected = copied(sources, origins, targets, destinations)
    copier().copy(sources, origins, targets, destinations)
    for target, wanted in zip(targets, expected, strict=True):
        assert torch.equal(target, wanted)


def test_nothing_else_is_read_or_written() -> None:
    sources = caches(3)
    expected = copied(sources, [3, 4, 5], sources, [4, 5, 6])
    copier(checked=True).copy(sources, [3, 4, 5], sources, [4, 5, 6])
    for source, wanted in zip(sources, expected, strict=True):
        assert torch.equal(source, wanted)


def test_what_cannot_be_copied_is_refused() -> None:
    (one,) = caches(1)
    with pytest.raises(ValueError, match=r"blocks \[9\] are copied, and the cache has 9"):
        copier().copy([one], [9], [one], [0])
    with pytest.raises(ValueError, match="different sizes"):
        copier().copy([one], [0], [one.float()], [0])
    with pytest.raises(ValueError, match="must be contiguous"):
        copier().copy([one.transpose(1, 2)], [0], [one], [0])
