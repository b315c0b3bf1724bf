"""First-party queue orders pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.sequence import SequenceGroup
from paged_core.testing import QueueOrderConformance


class TestFcfs(QueueOrderConformance):
    component = "fcfs"

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        return groups


class TestPriority(QueueOrderConformance):
    component = "priority"

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        return sorted(groups, key=lambda group: group.request.priority)
