"""What a queue order must do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from hypothesis import strategies as st

from paged_core.interfaces.queue_order import OrderParts, QueueOrder, SupportsQuantum
from paged_core.interfaces.service import service_of
from paged_core.request import Request
from paged_core.sequence import SequenceGroup, Status
from paged_core.testing.component_conformance import ServesEveryWorkload
from paged_core.testing.policy_subjects import empty_cache, request_lists, waiting_groups
from paged_core.testing.untouched import untouched
from paged_core.waiting_queue import WaitingQueue


class QueueOrderConformance(ServesEveryWorkload):
    """Subclass it for a queue order. State the exact order by overriding :meth:`expected`::

    class TestLastComeFirst(QueueOrderConformance):
        component = "last_come_first"

        def expected(self, groups, now):
            return list(reversed(groups))
    """

    slot: ClassVar[str] = "queue_order"

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        """Return the groups in the order in which they must be served; ``None``: not specified.

        Args:
            groups: in arrival order.
            now: seconds.
        """
        return None

    def make(self) -> QueueOrder:
        """A fresh order with an empty cache."""
        made = self.build(OrderParts(kv_cache=empty_cache(self.registry)))
        assert isinstance(made, QueueOrder)
        return made

    def test_any_two_groups_can_be_compared(self) -> None:
        def compares(requests: list[Request], now: float) -> None:
            order = self.make()
            keys = [order.key(group, now) for group in waiting_groups(requests)]
            for one in keys:
                for other in keys:
                    smaller, larger, equal = one < other, other < one, one == other
                    assert smaller + larger + equal == 1, f"{one!r} and {other!r} have no order"
            ranked = sorted(keys)
            assert all(not later < sooner for sooner, later in pairwise(ranked))

        self.check(compares, request_lists(), st.floats(0, 100))

    def test_a_key_depends_on_the_group_and_the_time_alone(self) -> None:
        def asks_twice(requests: list[Request], now: float) -> None:
            order, twin = self.make(), self.make()
            groups = waiting_groups(requests)
            with untouched(groups):
                before = [order.key(group, now) for group in groups]
            assert [order.key(group, now) for group in reversed(groups)] == before[::-1]
            assert [twin.key(group, now) for group in groups] == before, (
                "a second order returns other keys for the same groups: runs cannot be repeated"
            )

        self.check(asks_twice, request_lists(), st.floats(0, 100))

    def test_a_stable_order_stays_the_same_while_groups_wait(self) -> None:
        def stays(requests: list[Request], now: float, later: float) -> None:
            order = self.make()
            if order.stable:
                for group in waiting_groups(requests):
                    assert order.key(group, now) == order.key(group, now + later), (
                        "the key changes with time; set stable = False"
                    )

        self.check(stays, request_lists(), st.floats(0, 100), st.floats(0, 1e6))

    def test_serves_in_the_expected_order(self) -> None:
        def serves(requests: list[Request], now: float) -> None:
            queue = WaitingQueue(self.make())
            groups = waiting_groups(requests)
            for group in groups:
                queue.push(group, now)
            wanted = self.expected(groups, now)
            got = [queue.pop() for _ in groups]
            assert sorted(group.number for group in got) == list(range(len(groups)))
            assert wanted is None or got == list(wanted)

        self.check(serves, request_lists(), st.floats(0, 100))

    def test_counts_service_without_losing_the_order(self) -> None:
        def counts(requests: list[Request], served: list[int]) -> None:
            order = self.make()
            assert hasattr(order, "served") == hasattr(order, "left"), (
                "an order needs both served() and left(); with one, the engine calls neither"
            )
            groups = waiting_groups(requests)
            with untouched(groups):
                _tell(order, groups, served)
                sorted(order.key(group, 100.0) for group in groups)
                service = service_of(order)
                if service is not None:
                    for group in groups:
                        service.left(group)

        self.check(counts, request_lists(), st.lists(st.integers(1, 50), min_size=8, max_size=8))

    def test_quantum_over_depends_on_the_group_and_its_service_alone(self) -> None:
        """If it has quanta: in any order of calls."""

        def says(requests: list[Request], served: list[int], now: float) -> None:
            order, twin = self.make(), self.make()
            if not isinstance(order, SupportsQuantum):
                return
            assert isinstance(twin, SupportsQuantum)
            groups = waiting_groups(requests)
            for group in groups:
                group.status, group.first_token_at = Status.RUNNING, 0.0
            with untouched(groups):
                answers = [order.quantum_over(group, now) for group in groups]
                assert all(isinstance(answer, bool) for answer in answers), f"{answers}: not bools"
                for each in (order, twin):
                    _tell(each, groups[:-1] * len(served), served * len(groups))
                answers = [order.quantum_over(group, now) for group in groups]
                again = [order.quantum_over(group, now) for group in reversed(groups)]
            assert again == answers[::-1], "a second call returns something else"
            assert [twin.quantum_over(group, now) for group in groups] == answers, (
                "a second order returns something else for the same calls: runs cannot be repeated"
            )

        counts = st.lists(st.sampled_from([1, 1, 1, 9]), max_size=40)
        self.check(says, request_lists(), counts, st.floats(100, 200))


def _tell(order: QueueOrder, groups: Sequence[SequenceGroup], served: Sequence[int]) -> None:
    """Report service to an order that counts it, one second apart."""
    service = service_of(order)
    if service is not None:
        for now, (group, num_tokens) in enumerate(zip(groups, served, strict=False)):
            service.served(group, num_tokens, float(now))
