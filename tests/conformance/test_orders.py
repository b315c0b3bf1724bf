"""First-party queue orders pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paged_core.sequence import SequenceGroup
from paged_testing import QueueOrderConformance


def by(groups: Sequence[SequenceGroup], key: Callable[[SequenceGroup], Any]) -> list[SequenceGroup]:
    """Sorted; equal groups stay in arrival order."""
    return sorted(groups, key=key)


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
        return by(groups, lambda group: group.request.priority)


class TestPriorityWithAging(QueueOrderConformance):
    component = {"name": "priority", "aging": 0.5}  # noqa: RUF012

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        return by(groups, lambda group: group.request.priority + 0.5 * group.arrival)


class TestSjf(QueueOrderConformance):
    component = "sjf"


class TestSjfWithAging(QueueOrderConformance):
    component = {"name": "sjf", "aging": 5.0}  # noqa: RUF012


class TestHrrn(QueueOrderConformance):
    component = "hrrn"


class TestLongestPrefix(QueueOrderConformance):
    """With an empty cache it is the arrival order."""

    component = "longest_prefix"

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        return groups


class TestLongestPrefixWithAging(TestLongestPrefix):
    component = {"name": "longest_prefix", "aging": 2.0}  # noqa: RUF012


class TestFair(QueueOrderConformance):
    """Before any service it is the arrival order."""

    component = "fair"

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        return groups


class TestEdf(QueueOrderConformance):
    component = "edf"

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        never = float("inf")
        return by(groups, lambda g: never if g.request.deadline is None else g.request.deadline)


class TestEdfWithSlo(QueueOrderConformance):
    component = {"name": "edf", "default_slo": 3.0}  # noqa: RUF012

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        return by(
            groups,
            lambda g: g.arrival + 3.0 if g.request.deadline is None else g.request.deadline,
        )


class TestMlfq(QueueOrderConformance):
    """No prompt here is longer than the first quantum: it is the arrival order."""

    component = "mlfq"

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        return groups


def level(group: SequenceGroup) -> int:
    """Of three levels, with a first quantum of 4."""
    return sum(len(group.request.prompt) > quantum for quantum in (4, 8))


class TestMlfqWithoutPromotion(QueueOrderConformance):
    component = {"name": "mlfq", "num_levels": 3, "first_quantum": 4, "promote_after": None}  # noqa: RUF012

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        return by(groups, level)


class TestMlfqWithPromotion(QueueOrderConformance):
    component = {"name": "mlfq", "num_levels": 3, "first_quantum": 4, "promote_after": 50.0}  # noqa: RUF012

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        def place(group: SequenceGroup) -> tuple[int, float]:
            due = group.arrival + 50.0
            key = (level(group), group.arrival)
            return min(key, (0, due)) if due <= now else key

        return by(groups, place)
