"""What a preemption must do."""

from __future__ import annotations

from hypothesis import strategies as st

from paged_testing.component_conformance import ServesEveryWorkload
from paged_testing.policy_subjects import request_lists, shares
from paged_testing.preemption_cases import PreemptionCases
from paged_testing.workload import workloads


class PreemptionConformance(ServesEveryWorkload, PreemptionCases):
    """Subclass it for a preemption. State its mode by overriding :meth:`expected`::

    class TestAlwaysSwap(PreemptionConformance):
        component = "always_swap"

        def expected(self, group):
            return PreemptionMode.SWAP
    """

    def test_returns_a_mode_and_swaps_only_if_may_swap(self) -> None:
        self.check(self.check_modes, request_lists(), shares())

    def test_reserves_between_the_present_and_the_maximum_length(self) -> None:
        self.check(self.check_reservations, request_lists(), shares(), st.integers(1, 8))

    def test_serves_workloads_with_any_number_of_host_blocks(self) -> None:
        numbers = st.integers(0, 12)
        self.check(self.check_swaps, self.engine_values(), workloads(), numbers, share=0.5)
