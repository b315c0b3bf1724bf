"""What a victim component must do."""

from __future__ import annotations

from hypothesis import strategies as st

from paged_testing.component_conformance import ServesEveryWorkload
from paged_testing.policy_subjects import request_lists, shares
from paged_testing.victim_cases import VictimCases


class VictimConformance(ServesEveryWorkload, VictimCases):
    """Subclass it for a victim component. State the choice by overriding :meth:`expected`::

    class TestOldest(VictimConformance):
        component = "oldest"

        def expected(self, candidates, now):
            return candidates[0]
    """

    def test_chooses_the_only_candidate(self) -> None:
        self.check(self.check_only_candidate, request_lists(), share=0.5)

    def test_chooses_one_of_the_candidates_and_changes_nothing(self) -> None:
        """One component is called repeatedly, each time without the groups chosen before."""
        self.check(self.check_choices, request_lists(), shares(), st.floats(0, 100))
