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
CACHES = [
    (torch.bfloat16, (2, 3, 16, 8)),
    (torch.float32, (2, 1, 3, 1)),
    (torch.uint8, (2, 3, 16, 8)),
    (torch.bfloat16, (2, 2, 3, 1)),
    (torch.float32, (2, 3, 16, 8)),
]
"""A block of the second and of the fourth has 24 bytes: no multiple of 16."""

pytestmark = pytest.mark.skipif(
    isinstance(find_compiler(), CannotCompile), reason="there is no C++ compiler"
)


@cache
def copier(*, checked: bool = False) -> BlockCopier:
    return BlockCopier(EmulatedModule.load(checked=checked), CPU)


def caches(count: int) -> list[Tensor]:
    return [
        torch.randint(0, 200, (NUM_BLOCKS, *shape)).to(dtype) for dtype, shape in CACHES[:count]
    ]


def check(copier: BlockCopier, count: int, origins: list[int], destinations: list[int]) -> None:
    """Compare with what torch makes of it."""
    held = caches(count)
    expected = [cache.clone() for cache in held]
    for one in expected:
        one[destinations] = one[origins].clone()
    copier.copy(held, origins, destinations)
    assert all(map(torch.equal, held, expected))


@given(
    count=st.integers(1, 5),
    origins=st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=NUM_BLOCKS),
    places=st.permutations(range(NUM_BLOCKS)),
)
def test_blocks_of_all_caches_are_copied(count: int, origins: list[int], places: list[int]) -> None:
    check(copier(), count, origins, places[: len(origins)])


def test_nothing_else_is_read_or_written() -> None:
    check(copier(checked=True), 3, [3, 4, 5], [4, 5, 6])


def test_what_cannot_be_copied_is_refused() -> None:
    (one,) = caches(1)
    for origins, destinations in (([9], [0]), ([0], [9])):
        with pytest.raises(ValueError, match=r"blocks \[9\] are copied, and the cache has 9"):
            copier().copy([one], origins, destinations)
    with pytest.raises(ValueError, match="must be contiguous"):
        copier().copy([one.transpose(1, 2)], [0], [0])
