"""The waiting groups, in the order of the ``queue_order``."""

from __future__ import annotations

from bisect import bisect_left
from itertools import count
from operator import itemgetter
from typing import Any

from paged_core.checked.calls import asking
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.sequence import SequenceGroup


class WaitingQueue:
    """A queue that a :class:`~paged_core.interfaces.queue_order.QueueOrder` sorts.

    Adding a group whose key raises, or cannot be compared with others, changes nothing.

    Groups of equal key are in the order in which they were pushed, except those pushed to the
    front. Under a stable order every operation makes O(log n) comparisons; under another the queue
    is sorted again by :meth:`refresh`, once a step.
    """

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._groups: list[SequenceGroup] = []
        self._ranks: list[tuple[Any, int]] = []
        """Beside the groups: the key of each, and its place among equals."""
        self._rank_of: dict[str, tuple[Any, int]] = {}
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
            key, old = self._order.key, self._ranks
            with asking(self._order):
                ranked = zip(self._groups, old, strict=True)
                new = [(key(each, now), rank[1]) for each, rank in ranked]
                pairs = sorted(zip(new, self._groups, strict=True), key=itemgetter(0))
            self._ranks = [rank for rank, _ in pairs]
            self._groups = [group for _, group in pairs]
            self._rank_of = {group.id: rank for rank, group in pairs}

    def head(self) -> SequenceGroup:
        """The group to be popped next; ``IndexError``: the queue is empty."""
        return self._groups[0]

    def pop(self) -> SequenceGroup:
        """Remove and return the head; ``IndexError``: the queue is empty."""
        group = self._groups.pop(0)
        del self._ranks[0], self._rank_of[group.id]
        return group

    def remove(self, group: SequenceGroup) -> None:
        """Remove a group, wherever it is in the queue; ``KeyError``: it is not in the queue."""
        place = bisect_left(self._ranks, self._rank_of.pop(group.id))
        if place == len(self._groups) or self._groups[place].id != group.id:
            place = self._groups.index(group)  # the keys of the order contradict each other
        del self._groups[place], self._ranks[place]

    def ordered(self) -> list[SequenceGroup]:
        """All groups in the order in which they would be popped."""
        return self._groups.copy()

    def __contains__(self, group: SequenceGroup) -> bool:
        return group.id in self._rank_of

    def __len__(self) -> int:
        return len(self._groups)

    def _put(self, group: SequenceGroup, position: int, now: float) -> None:
        with asking(self._order):
            rank = (self._order.key(group, now), position)
            place = bisect_left(self._ranks, rank)  # raises before anything has changed
        if group.id in self._rank_of:
            self.remove(group)
            place = bisect_left(self._ranks, rank)
        self._groups.insert(place, group)
        self._ranks.insert(place, rank)
        self._rank_of[group.id] = rank
