"""Running groups that may have to make room because their quantum is over."""

from __future__ import annotations

from collections.abc import Iterable

from paged_core.interfaces.queue_order import QueueOrder, SupportsQuantum
from paged_core.sequence import SequenceGroup
from paged_policies.schedulers.promises import Promises


class Quanta:
    """The quanta of an order, if it has any, and what a scheduler adds to them.

    A group draws at least one token between its start and a preemption for its quantum, or two
    could push each other out before either got anything; and none gives way that was admitted to
    run to its end.
    """

    def __init__(self, order: QueueOrder, promises: Promises) -> None:
        self._order = order
        self._rule: SupportsQuantum | None = order if isinstance(order, SupportsQuantum) else None
        self._promises = promises
        self._marks: dict[str, tuple[float, int]] = {}
        """Of those that run: since when they last waited, and how long they were at their start."""

    @property
    def exist(self) -> bool:
        """Whether the order has any."""
        return self._rule is not None

    def spent(self, running: Iterable[SequenceGroup], now: float) -> list[SequenceGroup]:
        """Return those that may give way; the order is asked once for each that runs.

        Args:
            running: all that run; to be shown in every step in which others wait.
        """
        rule = self._rule
        if rule is None:
            return []
        found, marks = [], {}
        for group in running:
            mark = self._marks.get(group.id)
            if mark is None or mark[0] != group.waiting_since:
                mark = (group.waiting_since, _length_at_start(group))
            marks[group.id] = mark
            if (
                rule.quantum_over(group, now)
                and _longest(group) != mark[1]
                and all(sequence.num_pending == 1 for sequence in group.live)
                and not self._promises.lifetime(group)
            ):
                found.append(group)
        self._marks = marks
        return found

    def behind(
        self, first: SequenceGroup, spent: Iterable[SequenceGroup], now: float
    ) -> list[SequenceGroup]:
        """Return those of ``spent`` that come after ``first``, the last one at the end."""
        key = self._order.key
        own = key(first, now)
        keyed = [(key(group, now), group) for group in spent]
        keyed = sorted((pair for pair in keyed if own < pair[0]), key=lambda pair: pair[0])
        return [group for _, group in keyed]


def _longest(group: SequenceGroup) -> int:
    """Tokens of the longest sequence; the number changes whenever the group is given a token."""
    return max(len(sequence.tokens) for sequence in group.live)


def _length_at_start(group: SequenceGroup) -> int:
    """What :func:`_longest` was when the group last started; too much if that was a while ago.

    A pending token says nothing: it may be the last one of a prompt that is computed in chunks.
    """
    if group.waiting_since == group.arrival:
        return len(group.request.prompt)
    return _longest(group)
