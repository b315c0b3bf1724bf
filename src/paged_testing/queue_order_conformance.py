"""What a queue order must do."""

from __future__ import annotations

from hypothesis import strategies as st

from paged_testing.component_conformance import ServesEveryWorkload
from paged_testing.policy_subjects import request_lists
from paged_testing.queue_order_cases import QueueOrderCases


class QueueOrderConformance(ServesEveryWorkload, QueueOrderCases):
    """Subclass it for a queue order. State the exact order by overriding :meth:`expected`::

    class TestLastComeFirst(QueueOrderConformance):
        component = "last_come_first"

        def expected(self, groups, now):
            return list(reversed(groups))
    """

    def test_any_two_groups_can_be_compared(self) -> None:
        self.check(self.check_comparisons, request_lists(), st.floats(0, 100))

    def test_a_key_depends_on_the_group_and_the_time_alone(self) -> None:
        self.check(self.check_answers, request_lists(), st.floats(0, 100))

    def test_a_stable_order_stays_the_same_while_groups_wait(self) -> None:
        times = st.floats(0, 100), st.floats(0, 1e6)
        self.check(self.check_stability, request_lists(), *times)

    def test_serves_in_the_expected_order(self) -> None:
        self.check(self.check_order, request_lists(), st.floats(0, 100))

    def test_counts_service_without_losing_the_order(self) -> None:
        counts = st.lists(st.integers(1, 50), min_size=8, max_size=8)
        self.check(self.check_service, request_lists(), counts)

    def test_quantum_over_depends_on_the_group_and_its_service_alone(self) -> None:
        """If it has quanta: in any order of calls."""
        counts = st.lists(st.sampled_from([1, 1, 1, 9]), max_size=40)
        self.check(self.check_quanta, request_lists(), counts, st.floats(100, 200))
