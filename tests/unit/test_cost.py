"""Instructions of a step, and how they grow; those of components are counted by their kit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise

import pytest

from paged_core.cli.options import SettingsArgs
from paged_core.plugins.registry import Registry
from paged_plugins.bench.scheduler_command import NULL_EXECUTOR, SteadyState
from paged_testing.use import instructions

pytestmark = pytest.mark.heavy

REGISTRY = Registry.discover()


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
