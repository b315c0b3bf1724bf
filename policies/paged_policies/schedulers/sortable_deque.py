"""A deque of waiting groups that is sorted only on request, as vLLM V0's waiting queue is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from paged_core.checked.calls import asking
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.sequence import SequenceGroup


class SortableDeque:
    """New groups are at the end and preempted ones at the head, until :meth:`sort` is called.

    The core's :class:`~paged_core.requests.waiting_queue.WaitingQueue` is in order at all times
    instead. Sorting costs nothing while, under a stable order, the groups are in order: under first
    come, first served they always are. Otherwise it computes the key of every group.
    """

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._groups: deque[SequenceGroup] = deque()
        self._is_sorted = order.stable

    def append(self, group: SequenceGroup, now: float) -> None:
        """Add a group at the end."""
        if self._is_sorted and self._groups:
            self._is_sorted = self._in_order(self._groups[-1], group, now)
        self._groups.append(group)

    def appendleft(self, group: SequenceGroup, now: float) -> None:
        """Add a group at the head."""
        if self._is_sorted and self._groups:
            self._is_sorted = self._in_order(group, self._groups[0], now)
        self._groups.appendleft(group)

    def popleft(self) -> SequenceGroup:
        """Remove and return the head.

        Raises:
            IndexError: the deque is empty.
        """
        return self._groups.popleft()

    def remove(self, group: SequenceGroup) -> None:
        """Remove a group, wherever it is in the deque.

        Raises:
            ValueError: it is not in the deque.
        """
        self._groups.remove(group)

    def sort(self, now: float) -> None:
        """Sort by the keys of ``now``; groups of equal key keep their order."""
        if not self._is_sorted:
            key = self._order.key
            with asking(self._order):
                self._groups = deque(sorted(self._groups, key=lambda group: key(group, now)))
            self._is_sorted = self._order.stable

    def __getitem__(self, index: int) -> SequenceGroup:
        return self._groups[index]

    def __iter__(self) -> Iterator[SequenceGroup]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def _in_order(self, first: SequenceGroup, second: SequenceGroup, now: float) -> bool:
        with asking(self._order):
            return bool(self._order.key(first, now) <= self._order.key(second, now))
