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
from paged_testing.allocator import PlainEvictor
from paged_testing.engines import build_memory_engine
from paged_testing.workloads import simple_request


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


def test_requests_one_after_another_use_the_blocks_of_the_first() -> None:
    engine = build_memory_engine(block_allocator="uncached", num_blocks=64, block_size=4)
    used: set[int] = set()
    for number in range(8):
        engine.add(simple_request(f"r{number}", prompt=10, max_tokens=6))
        while engine.has_unfinished:
            engine.step()
            for group in engine.groups:
                used.update(block for one in group.live for block in one.table.blocks)
    assert used == {0, 1, 2, 3}
