"""Choices of policies in states that tell one from another."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.requests.waiting import uncached_tokens
from paged_core.sequence import SequenceGroup
from paged_testing.engines import build_memory_engine
from paged_testing.workloads import simple_request
from unit.engines import REGISTRY

WARM = tuple(range(40))
"""A prompt that was served, so that a prefix cache holds 9 of its 10 blocks for its like."""


def admitted_first(order: dict[str, Any], allocator: str) -> str:
    """Serve one of three: the cached prompt, and two of which one is shorter than that."""
    engine = build_memory_engine(
        REGISTRY,
        queue_order=order,
        block_allocator=allocator,
        scheduler={"name": "token_budget", "max_num_seqs": 1},
    )
    engine.add(simple_request("before", WARM, 1))
    engine.step()
    groups = {
        name: engine.add(simple_request(name, prompt, 4))
        for name, prompt in (("long", 50), ("cached", WARM), ("short", 9))
    }
    assert uncached_tokens(groups["long"], engine.kv_cache) == 50
    left = uncached_tokens(groups["cached"], engine.kv_cache)
    assert left == (4 if allocator == "hash_cached" else 40)
    engine.step()
    return next(name for name, group in groups.items() if group.admitted_at is not None)


@pytest.mark.parametrize("order", ["sjf", "hrrn"])
def test_an_order_by_size_counts_what_a_prefix_hit_leaves(order: str) -> None:
    assert admitted_first({"name": order}, "hash_cached") == "cached"
    assert admitted_first({"name": order}, "uncached") == "short"


def test_tokens_left_are_those_that_are_not_computed_once_a_group_runs() -> None:
    engine = build_memory_engine(
        REGISTRY, scheduler={"name": "token_budget", "max_num_batched_tokens": 16}
    )
    group: SequenceGroup = engine.add(simple_request("r", WARM, 4))
    for left in (40, 24, 8, 1):
        assert uncached_tokens(group, engine.kv_cache) == left
        engine.step()
