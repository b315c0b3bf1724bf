"""First-party victims pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paged_core.sequence import SequenceGroup
from paged_testing import VictimConformance


def most(score: Callable[[SequenceGroup], int]) -> Any:
    """State that the group of the highest score is chosen; of equal ones the last."""

    def expected(
        self: VictimConformance, candidates: Sequence[SequenceGroup], now: float, /
    ) -> SequenceGroup:
        return max(reversed(candidates), key=score)

    return expected


def _num_blocks(group: SequenceGroup) -> int:
    return len({block for each in group.live for block in each.table.blocks})


class TestNewest(VictimConformance):
    component = "newest"
    expected = most(lambda group: 0)


class TestLowestPriority(VictimConformance):
    component = "lowest_priority"
    expected = most(lambda group: group.request.priority)


class TestFewestComputed(VictimConformance):
    component = "fewest_computed"
    expected = most(lambda group: -sum(each.num_computed for each in group.live))


class TestMostBlocks(VictimConformance):
    component = "most_blocks"
    expected = most(_num_blocks)


class TestMostRemaining(VictimConformance):
    component = "most_remaining"
    expected = most(lambda group: sum(group.max_length - s.num_tokens for s in group.live))


class TestRecomputeCost(VictimConformance):
    component = "recompute_cost"


class TestRecomputeCostThatSpares(VictimConformance):
    component = {"name": "recompute_cost", "max_preemptions": 1}  # noqa: RUF012


class TestLowestPriorityThatSpares(VictimConformance):
    component = {"name": "lowest_priority", "max_preemptions": 1}  # noqa: RUF012


class TestMostBlocksThatSpares(VictimConformance):
    component = {"name": "most_blocks", "max_preemptions": 1}  # noqa: RUF012

    def expected(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        spared = [group for group in candidates if group.num_preemptions < 1]
        return max(reversed(spared or candidates[-1:]), key=_num_blocks)


class TestFewestComputedThatSpares(VictimConformance):
    component = {"name": "fewest_computed", "max_preemptions": 1}  # noqa: RUF012
