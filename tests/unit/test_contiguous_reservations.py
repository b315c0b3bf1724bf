"""How many blocks the allocator without paging reserves."""

from __future__ import annotations

import pytest

from paged_testing.engines import build_memory_engine


@pytest.mark.parametrize(
    ("reserve", "expected"),
    [("max", 60), ("power_of_two", 60), ("exact", 35)],
)
def test_it_reserves_for_the_final_length(reserve: str, expected: int) -> None:
    """That of a sequence that is admitted again must not be more than at first."""
    allocator = {"name": "contiguous", "reserve": reserve}
    engine = build_memory_engine(
        block_allocator=allocator, block_size=1, num_blocks=64, max_model_len=60
    )
    assert engine.kv_cache.blocks_to_start(10, 35) == expected
    assert engine.kv_cache.blocks_to_start(10, 10) in {10, 16, 60}
    assert engine.kv_cache.blocks_to_start(40, 60) == 60
