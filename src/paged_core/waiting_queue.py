"""The waiting groups, in the order of the ``queue_order``."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Any

from paged_core.interfaces.queue_order import QueueOrder
from paged_core.sequence import SequenceGroup


class WaitingQueue:
    """A queue that a :class:`~paged_core.interfaces.queue_order.QueueOrder` sorts.

    Adding a group whose key raises, or cannot be compared with others, changes nothing.

    Groups of equal key are in the order in which they were pushed, except those pushed to the
    front. Under a stable order every operation costs O(log n); under another the queue is sorted
    again by :meth:`refresh`, once a step.
    """

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._heap: list[tuple[Any, int, SequenceGroup]] = []
        self._entries: dict[str, tuple[Any, int, SequenceGroup]] = {}
        self._back = count()
        self._front = count(-1, -1)

    def push(self, group: SequenceGroup, now: float) -> None:
        """Add a group behind its equals."""
        self._put(group, next(self._back), now)

    def push_front(self, group: SequenceGroup, now: float) -> None:
        """Add a group before its equals."""
        self._put(group, next(self._front), now)

    def refresh(self, now: float) -> None:
        """Sort again, if keys change while groups wait."""
        if not self._order.stable:
            entries = [
                (self._order.key(group, now), position, group)
                for _, position, group in self._entries.values()
            ]
            self._heap = sorted(entries, key=_rank)
            self._entries = {entry[2].id: entry for entry in self._heap}

    def head(self) -> SequenceGroup:
        """The group to be popped next.

        Raises:
            IndexError: the queue is empty.
        """
        heap = self._heap
        while self._entries.get(heap[0][2].id) is not heap[0]:
            heappop(heap)  # removed earlier, or queued anew since
        return heap[0][2]

    def pop(self) -> SequenceGroup:
        """Remove and return the head.

        Raises:
            IndexError: the queue is empty.
        """
        group = self.head()
        heappop(self._heap)
        del self._entries[group.id]
        return group

    def remove(self, group: SequenceGroup) -> None:
        """Remove a group, wherever it is in the queue.

        Raises:
            KeyError: it is not in the queue.
        """
        del self._entries[group.id]

    def ordered(self) -> list[SequenceGroup]:
        """All groups in the order in which they would be popped."""
        return [entry[2] for entry in sorted(self._entries.values(), key=_rank)]

    def __contains__(self, group: SequenceGroup) -> bool:
        return group.id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def _put(self, group: SequenceGroup, position: int, now: float) -> None:
        entry = (self._order.key(group, now), position, group)
        try:
            heappush(self._heap, entry)
        except BaseException:  # its key cannot be compared with others
            self._heap = sorted(self._entries.values(), key=_rank)
            raise
        self._entries[group.id] = entry


def _rank(entry: tuple[Any, int, SequenceGroup]) -> tuple[Any, int]:
    return entry[0], entry[1]
