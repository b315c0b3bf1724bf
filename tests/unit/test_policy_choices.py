"""Choices of policies in states that tell one from another."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_a_victim_by_cost_spares_groups_of_which_others_hold_the_blocks() -> None:
    """Two share a prompt of 9 blocks and one has 4 of its own: it alone is worth to preempt."""
    engine = build_memory_engine(REGISTRY, victim="recompute_cost")
    for name, prompt in (("one", WARM), ("other", WARM), ("own", 16)):
        engine.add(simple_request(name, prompt, 9))
        engine.step()
    candidates = {group.id: group for group in engine.groups}
    for order in (["one", "own", "other"], ["own", "other", "one"]):
        shown = [candidates[name] for name in order]
        assert engine.scheduler.planner._victim.choose(shown, 0.0).id == "own"


TENANTS = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 12)), min_size=20, max_size=20)


@settings(max_examples=25)
@given(TENANTS, TENANTS, st.sampled_from([1.0, 2.0]))
def test_service_of_tenants_that_wait_differs_by_the_bound_of_its_paper(
    one: list[tuple[int, int]], other: list[tuple[int, int]], weight: float
) -> None:
    """Twice the most that a prompt, or what the batch generates, costs (theorem 4.4 of VTC)."""
    served, batch = Counter[str](), 4
    order = {"name": "fair", "weights": {"a": weight}}
    engine = build_memory_engine(
        REGISTRY,
        queue_order=order,
        block_allocator="uncached",
        num_blocks=200,
        scheduler={"name": "token_budget", "max_num_seqs": batch},
    )
    for number, pair in enumerate(zip(one, other, strict=True)):
        for tenant, (length, max_tokens) in zip("ab", pair, strict=True):
            request = simple_request(f"{tenant}{number}", length, max_tokens)
            engine.add(replace(request, tenant=tenant))
    while {each.request.tenant for each in engine.groups if each.admitted_at is None} == {*"ab"}:
        before = {each: each.live[0].num_computed for each in engine.groups}
        engine.step()
        for group, start in before.items():
            end = group.sequences[0].num_computed
            as_input = min(end, len(group.request.prompt)) - min(start, len(group.request.prompt))
            served[group.request.tenant] += as_input + 2 * (end - start - as_input)  # type: ignore[assignment]
        bound = 2 * max(24, 2 * batch * 36)
        assert abs(served["a"] / weight - served["b"]) <= bound
