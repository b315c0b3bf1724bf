"""First-party queue orders pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paged_core.sequence import SequenceGroup
from paged_testing import QueueOrderConformance


def by(key: Callable[[SequenceGroup, float], Any]) -> Any:
    """State that groups are served by a key; equal ones in arrival order."""

    def expected(
        self: QueueOrderConformance, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup]:
        return sorted(groups, key=lambda group: key(group, now))

    return expected


ARRIVAL = by(lambda group, now: group.number)


class TestFcfs(QueueOrderConformance):
    component = "fcfs"
    expected = ARRIVAL


class TestPriority(QueueOrderConformance):
    component = "priority"
    expected = by(lambda group, now: group.request.priority)


class TestPriorityWithAging(QueueOrderConformance):
    component = {"name": "priority", "aging": 0.5}  # noqa: RUF012
    expected = by(lambda group, now: group.request.priority + 0.5 * group.arrival)


class TestSjf(QueueOrderConformance):
    component = "sjf"


class TestSjfWithAging(QueueOrderConformance):
    component = {"name": "sjf", "aging": 5.0}  # noqa: RUF012


class TestHrrn(QueueOrderConformance):
    component = "hrrn"


class TestLongestPrefix(QueueOrderConformance):
    """With an empty cache it is the arrival order."""

    component = "longest_prefix"
    expected = ARRIVAL


class TestLongestPrefixWithAging(TestLongestPrefix):
    component = {"name": "longest_prefix", "aging": 2.0}  # noqa: RUF012


class TestFair(QueueOrderConformance):
    """Before any service it is the arrival order."""

    component = {"name": "fair", "max_idle": 8}  # noqa: RUF012
    expected = ARRIVAL


def deadline(group: SequenceGroup, otherwise: float) -> float:
    return otherwise if group.request.deadline is None else group.request.deadline


class TestEdf(QueueOrderConformance):
    component = "edf"
    expected = by(lambda group, now: deadline(group, float("inf")))


class TestEdfWithSlo(QueueOrderConformance):
    component = {"name": "edf", "default_slo": 3.0}  # noqa: RUF012
    expected = by(lambda group, now: deadline(group, group.arrival + 3.0))


class TestLeastLaxity(QueueOrderConformance):
    """With an empty cache, ten thousand tokens of a prompt take a second, and fifty others, too."""

    component = {"name": "least_laxity", "default_slo": 30.0}  # noqa: RUF012
    expected = by(
        lambda group, now: (
            deadline(group, group.arrival + 30.0)
            - len(group.request.prompt) / 10_000
            - (group.max_length - len(group.request.prompt)) / 50
        )
    )


class TestQoe(QueueOrderConformance):
    component = "qoe"


class TestQoeWithoutPatience(QueueOrderConformance):
    """A request that waits at all has lost all: the shortest comes first."""

    component = {"name": "qoe", "expected_ttft": 1000.0}  # noqa: RUF012
    expected = ARRIVAL


class TestMlfq(QueueOrderConformance):
    """No prompt here is longer than the first quantum: it is the arrival order."""

    component = "mlfq"
    expected = ARRIVAL


def level(group: SequenceGroup) -> int:
    """Options: three levels, with a first quantum of 4."""
    return sum(len(group.request.prompt) > quantum for quantum in (4, 8))


def place(group: SequenceGroup, now: float) -> tuple[int, float]:
    """Its level and arrival, or since when it is on the highest one."""
    key, due = (level(group), group.arrival), group.waiting_since + 50.0
    return min(key, (0, due)) if due <= now else key


class TestMlfqWithoutPromotion(QueueOrderConformance):
    component = {"name": "mlfq", "num_levels": 3, "first_quantum": 4, "promote_after": None}  # noqa: RUF012
    expected = by(lambda group, now: level(group))


class TestMlfqWithPromotion(QueueOrderConformance):
    component = {"name": "mlfq", "num_levels": 3, "first_quantum": 4, "promote_after": 50.0}  # noqa: RUF012
    expected = by(place)
