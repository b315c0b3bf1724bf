"""Running groups that may have to make room because their quantum is over."""

from __future__ import annotations

from collections.abc import Iterable

from paged_core.interfaces.queue_order import QueueOrder, SupportsQuantum
from paged_core.sequence import SequenceGroup
from paged_policies.schedulers.promises import Promises


class Quanta:
    """The quanta of an order, if it has any, and what a scheduler adds to them.

    A group is given at least one token between two preemptions for its quantum, or two groups could
    push each other out before either got anything; and none gives way that was admitted to run to
    its end.
    """

    def __init__(self, order: QueueOrder, promises: Promises) -> None:
        self._order = order
        self._rule: SupportsQuantum | None = order if isinstance(order, SupportsQuantum) else None
        self._promises = promises

    @property
    def exist(self) -> bool:
        """Whether the order has any."""
        return self._rule is not None

    def spent(self, running: Iterable[SequenceGroup], now: float) -> list[SequenceGroup]:
        """Return those that may give way; the order is asked once for each that runs."""
        rule = self._rule
        if rule is None:
            return []
        return [
            group
            for group in running
            if rule.quantum_over(group, now)
            and all(sequence.num_pending == 1 for sequence in group.live)
            and not self._promises.lifetime(group)
        ]

    def behind(
        self, first: SequenceGroup, spent: Iterable[SequenceGroup], now: float
    ) -> list[SequenceGroup]:
        """Return those of ``spent`` that come after ``first``, the last one at the end."""
        key = self._order.key
        own = key(first, now)
        keyed = [(key(group, now), group) for group in spent]
        keyed = sorted((pair for pair in keyed if own < pair[0]), key=lambda pair: pair[0])
        return [group for _, group in keyed]
