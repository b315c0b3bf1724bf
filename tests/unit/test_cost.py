"""Costs counted in bytecode instructions, and how they grow."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from paged_core.cli.options import SettingsArgs
from paged_core.engine.contexts import AllocatorContext, EvictorContext, OrderContext
from paged_core.ids import BlockKey
from paged_core.interfaces.allocator import BlockAllocator, SupportsPrefixCache, SupportsReservation
from paged_core.interfaces.evictor import Evictor
from paged_core.interfaces.queue_order import QueueOrder, SupportsQuantum, SupportsService
from paged_core.plugins.registry import Registry
from paged_core.requests.lookup_oracle import LookupOracle
from paged_plugins.bench.scheduler_command import NULL_EXECUTOR, SteadyState
from paged_testing.policy_subjects import empty_cache, waiting_groups
from paged_testing.use import instructions
from paged_testing.workloads import simple_request

pytestmark = pytest.mark.heavy

REGISTRY = Registry.discover()
SMALL, LARGE = 1 << 8, 1 << 11
LOGARITHMIC = 11 / 8 * 1.25
"""Largest growth of the cost of the large case: as the logarithms of the sizes, and some."""


def build(slot: str, name: str, parts: object) -> Any:
    component = REGISTRY.get(slot, name)
    return component.load()(component.settings(), parts)


def make_evictor(name: str, num_blocks: int) -> Evictor:
    context = EvictorContext(num_blocks=num_blocks, block_size=16, seed=0, future=LookupOracle())
    made = build("evictor", name, context)
    assert isinstance(made, Evictor)
    return made


# ---------------------------------------------------------------------- allocators


def allocator_cost(name: str, num_blocks: int) -> float:
    """Instructions of taking, sharing, caching, finding and giving back a block."""
    context = AllocatorContext(
        num_blocks=num_blocks,
        block_size=1,
        max_model_len=num_blocks,
        evictor=make_evictor("lru", num_blocks),
    )
    allocator: BlockAllocator = build("block_allocator", name, context)
    held = allocator.allocate(num_blocks)
    Random(0).shuffle(held)
    keys = [BlockKey(None, (number,)) for number in range(2 * num_blocks)]
    equal = BlockKey(None, (-1,))
    fresh = iter(keys)

    def take_and_give_back() -> None:
        for block in held[: num_blocks // 2]:
            allocator.share([block])
            allocator.free([block])
            allocator.free([block])
            if isinstance(allocator, SupportsReservation):
                (taken,) = allocator.reserve(1)
            else:
                (taken,) = allocator.allocate(1)
            if isinstance(allocator, SupportsPrefixCache):
                key = next(fresh) if taken % 2 else equal
                allocator.look_up([key])
                if allocator.cache(taken, key) == taken and not taken % 7:
                    allocator.uncache([taken])
            assert allocator.num_free == 0

    return instructions(take_and_give_back) / (num_blocks // 2)


@pytest.mark.parametrize("name", sorted(REGISTRY.of("block_allocator")))
def test_no_operation_of_an_allocator_costs_more_than_a_logarithm(name: str) -> None:
    assert allocator_cost(name, LARGE) <= LOGARITHMIC * allocator_cost(name, SMALL)


# ---------------------------------------------------------------------- orders


def order_cost(name: str, num_groups: int) -> float:
    """Instructions of a key, a count of service and, if it has them, a look at a quantum."""
    order: QueueOrder = build("queue_order", name, OrderContext(kv_cache=empty_cache(REGISTRY)))
    groups = waiting_groups(
        [simple_request(f"r{number}", 1 + number % 7, 4) for number in range(num_groups)]
    )
    for group in groups:
        group.first_token_at = 0.0
    service = order if isinstance(order, SupportsService) else None

    def ask() -> None:
        for times in range(3):
            for group in groups:
                order.key(group, float(times))
                if service is not None:
                    service.served(group, 1, float(times))
                if isinstance(order, SupportsQuantum):
                    order.quantum_over(group, float(times))

    return instructions(ask) / num_groups


@pytest.mark.parametrize("name", sorted(REGISTRY.of("queue_order")))
def test_no_call_of_an_order_depends_on_how_many_it_knows(name: str) -> None:
    assert order_cost(name, 1 << 9) <= 1.05 * order_cost(name, 1 << 6)


# ---------------------------------------------------------------------- steps


@cache
def step_cost(
    scheduler: str, num_running: int, num_waiting: int, queue_order: str = "fcfs"
) -> float:
    """Instructions of a step of the engine in a steady state, the mean over a block's length."""
    state = SteadyState(
        num_running=num_running,
        num_waiting=num_waiting,
        context=16,
        block_size=4,
        steps=8,
        repeats=1,
    )
    registry = REGISTRY.extended(NULL_EXECUTOR, plugin="test_cost")
    given = SettingsArgs(registry=registry, config=None, options=(), environ={})
    chosen = {"scheduler": scheduler, "queue_order": queue_order, "block_allocator": "hash_cached"}
    engine = state.build(given, chosen)
    for _ in range(2):
        engine.step()

    def steps() -> None:
        for _ in range(4):
            engine.step()

    cost = instructions(steps) / 4
    engine.close()
    return cost


def linear(cost: Callable[[int], float], sizes: tuple[int, ...]) -> float:
    """By how much the dearest further sequence is dearer than the cheapest."""
    slopes = [(cost(more) - cost(few)) / (more - few) for few, more in pairwise(sizes)]
    return max(slopes) / min(slopes)


@pytest.mark.parametrize("scheduler", sorted(REGISTRY.of("scheduler")))
def test_a_step_grows_linearly_with_what_is_scheduled(scheduler: str) -> None:
    assert linear(lambda running: step_cost(scheduler, running, 0), (16, 64, 256, 512)) < 1.1


@pytest.mark.parametrize("scheduler", sorted(REGISTRY.of("scheduler")))
def test_a_step_does_not_depend_on_how_many_wait(scheduler: str) -> None:
    idle, *loaded = (step_cost(scheduler, 64, waiting) for waiting in (0, 400, 4000))
    for cost in loaded:
        assert cost == pytest.approx(loaded[0], rel=0.01)
        assert cost <= 1.15 * idle


@pytest.mark.parametrize("queue_order", sorted(REGISTRY.of("queue_order")))
def test_under_no_order_a_full_step_depends_on_the_waiting_requests(
    queue_order: str,
) -> None:
    few, many = (step_cost("token_budget", 16, waiting, queue_order) for waiting in (100, 2000))
    assert many == pytest.approx(few, rel=0.02)


@pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode"])
def test_a_step_under_an_order_with_quanta_grows_linearly_too(scheduler: str) -> None:
    costs = partial(step_cost, scheduler, num_waiting=100, queue_order="mlfq")
    assert linear(lambda running: costs(num_running=running), (16, 64, 256)) < 1.15
