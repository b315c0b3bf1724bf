"""First-party victims pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.sequence import SequenceGroup
from paged_testing import VictimConformance


class TestNewest(VictimConformance):
    component = "newest"

    def expected(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup | None:
        return candidates[-1]


class TestLowestPriority(VictimConformance):
    component = "lowest_priority"

    def expected(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup | None:
        worst = max(group.request.priority for group in candidates)
        return [group for group in candidates if group.request.priority == worst][-1]


class TestFewestComputed(VictimConformance):
    component = "fewest_computed"

    def expected(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup | None:
        fewest = min(group.live[0].num_computed for group in candidates)
        return [group for group in candidates if group.live[0].num_computed == fewest][-1]


class TestMostBlocks(VictimConformance):
    component = "most_blocks"

    def expected(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup | None:
        most = max(len(group.live[0].table.blocks) for group in candidates)
        return [group for group in candidates if len(group.live[0].table.blocks) == most][-1]


class TestLowestPriorityThatSpares(VictimConformance):
    component = {"name": "lowest_priority", "max_preemptions": 1}  # noqa: RUF012


class TestMostBlocksThatSpares(VictimConformance):
    component = {"name": "most_blocks", "max_preemptions": 1}  # noqa: RUF012


class TestFewestComputedThatSpares(VictimConformance):
    component = {"name": "fewest_computed", "max_preemptions": 1}  # noqa: RUF012
