"""Where nothing cached depends on it, blocks that were in use go before those that never were."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.engine.contexts import AllocatorContext
from paged_core.ids import BlockKey
from paged_core.interfaces.allocator import BlockAllocator
from paged_policies.allocators.contiguous import ContiguousAllocator, ContiguousSettings
from paged_policies.allocators.hash_cached import HashCachedAllocator, HashCachedSettings
from paged_policies.allocators.uncached import UncachedAllocator, UncachedSettings
from paged_testing.allocator_model import PlainEvictor
from paged_testing.engines import build_memory_engine


def parts(num_blocks: int) -> AllocatorContext:
    return AllocatorContext(
        num_blocks=num_blocks, block_size=4, max_model_len=64, evictor=PlainEvictor()
    )


def hash_cached(num_blocks: int) -> HashCachedAllocator:
    return HashCachedAllocator(HashCachedSettings(), parts(num_blocks))


ALLOCATORS: dict[str, Any] = {
    "uncached": lambda count: UncachedAllocator(UncachedSettings(), parts(count)),
    "hash_cached": hash_cached,
    "contiguous": lambda count: ContiguousAllocator(ContiguousSettings(), parts(count)),
}


@pytest.mark.parametrize("make", ALLOCATORS.values(), ids=ALLOCATORS)
def test_freed_blocks_go_before_those_that_never_were_in_use(make: Any) -> None:
    allocator: BlockAllocator = make(16)
    first, second = allocator.allocate(3), allocator.allocate(2)
    assert first + second == [0, 1, 2, 3, 4]
    allocator.free(reversed(first))
    assert allocator.allocate(2) == first[:2], "a sequence's blocks come back in their order"
    assert allocator.allocate(3) == [2, 5, 6]


def test_cached_blocks_are_kept_while_one_was_never_in_use() -> None:
    allocator = hash_cached(6)
    cached, partial, last = allocator.allocate(3)
    allocator.cache(cached, BlockKey(None, [1, 2, 3, 4]))
    allocator.free([last, partial, cached])
    assert allocator.allocate(6) == [partial, last, 3, 4, 5, cached]


def test_a_block_whose_content_was_uncached_goes_before_those_that_never_were_in_use() -> None:
    allocator = hash_cached(4)
    kept, lost = allocator.allocate(2)
    for number, block in enumerate((kept, lost)):
        allocator.cache(block, BlockKey(None, [number]))
    allocator.free([kept, lost])
    allocator.uncache([lost])
    assert allocator.allocate(4) == [lost, 2, 3, kept]


@pytest.mark.parametrize(
    ("reserve", "expected"),
    [("max", 60), ("power_of_two", 60), ("exact", 35)],
)
def test_it_reserves_for_the_final_length(reserve: str, expected: int) -> None:
    """Reserve no more for a sequence that is admitted again than at first."""
    allocator = {"name": "contiguous", "reserve": reserve}
    engine = build_memory_engine(
        block_allocator=allocator, block_size=1, num_blocks=64, max_model_len=60
    )
    assert engine.kv_cache.blocks_to_start(10, 35) == expected
    assert engine.kv_cache.blocks_to_start(10, 10) in {10, 16, 60}
    assert engine.kv_cache.blocks_to_start(40, 60) == 60
