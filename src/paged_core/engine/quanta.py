"""The quanta of running groups, under an order that has any."""

from __future__ import annotations

from collections.abc import Iterable

from paged_core.engine.preemptor import Preemptor
from paged_core.engine.waiting_queue import asking
from paged_core.interfaces.queue_order import QueueOrder, SupportsQuantum
from paged_core.sequence import SequenceGroup


class Quanta:
    """Says which running groups may be preempted since their quantum is over.

    Beside what the order says, a group generates at least one token between its start and a
    preemption for its quantum, or two groups could preempt each other for ever; and a group whose
    blocks are reserved for its whole life is not preempted.
    """

    def __init__(self, order: QueueOrder, preemptor: Preemptor) -> None:
        self._order = order
        self._rule: SupportsQuantum | None = order if isinstance(order, SupportsQuantum) else None
        self._preemptor = preemptor
        self._marks: dict[str, tuple[float, int]] = {}
        """Per running group: since when it last waited, and its length when it last started."""

    @property
    def exist(self) -> bool:
        """Whether the order has any."""
        return self._rule is not None

    def spent(self, running: Iterable[SequenceGroup], now: float) -> list[SequenceGroup]:
        """Return the groups whose quantum is over; the order is asked once for each.

        Args:
            running: all running groups; to be passed in every step in which others wait.
        """
        rule = self._rule
        if rule is None:
            return []
        found, marks = [], {}
        groups = list(running)
        with asking(rule):
            over = [rule.quantum_over(group, now) for group in groups]
        for group, is_over in zip(groups, over, strict=True):
            mark = self._marks.get(group.id)
            if mark is None or mark[0] != group.waiting_since:
                mark = (group.waiting_since, _length_at_start(group))
            marks[group.id] = mark
            if (
                is_over
                and group.longest != mark[1]
                and all(sequence.num_pending == 1 for sequence in group.live)
                and not self._preemptor.lifetime(group)
            ):
                found.append(group)
        self._marks = marks
        return found

    def behind(
        self, first: SequenceGroup, spent: Iterable[SequenceGroup], now: float
    ) -> list[SequenceGroup]:
        """Return those of ``spent`` that come after ``first`` in the order, the last at the end."""
        key = self._order.key
        with asking(self._order):
            own = key(first, now)
            keyed = [(key(group, now), group) for group in spent]
            keyed = sorted((pair for pair in keyed if own < pair[0]), key=lambda pair: pair[0])
        return [group for _, group in keyed]


def _length_at_start(group: SequenceGroup) -> int:
    """An upper bound of ``group.longest`` at the time the group last started.

    A pending token does not tell: it may be the last one of a prompt computed in chunks.
    """
    if group.waiting_since == group.arrival:
        return len(group.request.prompt)
    return group.longest
