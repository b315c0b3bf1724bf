"""How many blocks the allocator without paging reserves."""

from __future__ import annotations

import pytest

from paged_core.testing.memory_engine import build_memory_engine


@pytest.mark.parametrize(
    ("reserve", "expected"),
    [("max", 60), ("power_of_two", 10 + 32), ("exact", 35)],
)
def test_reserves_as_the_paper_on_paged_attention_says(reserve: str, expected: int) -> None:
    """Section 6.1: of 25 tokens of output, 32 are reserved."""
    allocator = {"name": "contiguous", "reserve": reserve}
    engine = build_memory_engine(
        block_allocator=allocator, block_size=1, num_blocks=64, max_model_len=60
    )
    assert engine.kv_cache.blocks_to_start(10, 35) == expected
    assert engine.kv_cache.blocks_to_start(10, 10) in {10, 11, 60}
    assert engine.kv_cache.blocks_to_start(40, 60) == 60
