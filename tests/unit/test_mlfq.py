"""Levels: who joins which, who sinks, who rises, and what that does for short requests."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.engine.contexts import OrderContext
from paged_core.sequence import SequenceGroup, Status
from paged_policies.orders.mlfq import MlfqOrder, MlfqSettings
from paged_testing.policy_subjects import empty_cache
from unit.block_tables import make_group
from unit.engines import REGISTRY

CACHE = empty_cache(REGISTRY)


def make(**options: Any) -> MlfqOrder:
    small = {"num_levels": 4, "first_quantum": 4, "promote_after": None, **options}
    return MlfqOrder(MlfqSettings(**small), OrderContext(kv_cache=CACHE))


def level(order: MlfqOrder, group: SequenceGroup, now: float = 0.0) -> int:
    return int(order.key(group, now)[0])


def start(order: MlfqOrder, group: SequenceGroup, now: float = 0.0) -> None:
    """Admit a group, compute its prompt, and draw a token."""
    group.status = Status.RUNNING
    order.served(group, len(group.live[0].tokens), now)
    if group.first_token_at is None:
        group.first_token_at = now


def decode(order: MlfqOrder, group: SequenceGroup, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        order.served(group, 1, now)


class TestLevels:
    @pytest.mark.parametrize(
        ("length", "joined"),
        [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (16, 2), (17, 3), (32, 3), (33, 3), (1000, 3)],
    )
    def test_joins_the_highest_whose_quantum_covers_its_prompt(
        self, length: int, joined: int
    ) -> None:
        order, group = make(), make_group(length)
        assert level(order, group) == joined
        start(order, group)
        assert level(order, group) == joined, "its first prompt does not make it sink"

    def test_sinks_when_it_was_given_the_quantum_of_its_level(self) -> None:
        order, group = make(), make_group(1)
        start(order, group)
        levels = []
        for _ in range(3 + 8 + 16 + 40):
            order.served(group, 1, 0.0)
            levels.append(level(order, group))
        expected = [0] * 2 + [1] * 8 + [2] * 16
        assert levels == expected + [3] * (len(levels) - len(expected))

    def test_within_a_level_goes_first_who_came_to_it_first(self) -> None:
        order = make()
        sunk, joined, late = make_group(1), make_group(8, arrival=5.0), make_group(8, arrival=9.0)
        start(order, sunk)
        decode(order, sunk, 3, now=7.0)
        sunk.status, sunk.waiting_since = Status.WAITING, 8.0
        ranked = sorted([late, joined, sunk], key=lambda group: order.key(group, 10.0))
        assert ranked == [joined, sunk, late]

    def test_tokens_that_are_computed_again_do_not_count(self) -> None:
        order, group = make(), make_group(1)
        start(order, group)
        decode(order, group, 2)
        group.status, group.waiting_since = Status.WAITING, 1.0
        group.status = Status.RUNNING
        order.served(group, 3, 2.0)
        order.served(group, 50, 2.0)
        assert level(order, group) == 0
        decode(order, group, 1)
        assert level(order, group) == 1


class TestQuantum:
    def test_is_over_once_the_request_has_sunk(self) -> None:
        order, group = make(), make_group(3)
        assert not order.quantum_over(group, 0.0)
        start(order, group)
        assert not order.quantum_over(group, 0.0)
        decode(order, group, 1)
        assert order.quantum_over(group, 0.0)
        assert level(order, group) == 1

    def test_begins_anew_when_the_request_starts_again(self) -> None:
        order, group = make(), make_group(17)
        start(order, group)
        decode(order, group, 4)
        group.status, group.waiting_since = Status.SWAPPED, 5.0
        group.status = Status.RUNNING
        decode(order, group, 3, now=6.0)
        assert not order.quantum_over(group, 6.0)
        decode(order, group, 1, now=6.0)
        assert order.quantum_over(group, 6.0)


class TestPromotion:
    @pytest.mark.parametrize("status", [Status.WAITING, Status.SWAPPED])
    def test_counts_from_when_it_gave_way(self, status: Status) -> None:
        order, group = make(promote_after=10.0), make_group(16)
        start(order, group)
        assert level(order, group, now=15.0) == 2, "it runs"
        group.status, group.waiting_since = status, 15.0
        assert level(order, group, now=24.9) == 2
        assert level(order, group, now=25.0) == 0

    def test_gives_it_a_whole_quantum_there(self) -> None:
        order, group = make(promote_after=10.0), make_group(16)
        start(order, group, now=30.0)
        assert order.key(group, 30.0)[:2] == (0, 10.0)
        decode(order, group, 3, now=31.0)
        assert level(order, group, now=31.0) == 0
        assert not order.quantum_over(group, 31.0)
        decode(order, group, 1, now=32.0)
        assert order.key(group, 32.0)[:2] == (1, 32.0)
        assert order.quantum_over(group, 32.0)
