"""Requests that the admission holds back, until the scheduler gets them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from paged_core.sequence import SequenceGroup

_ROUNDING = 1e-6
"""Seconds by which a time may be missed: sums of differences on a clock are rounded."""


class HeldRequests:
    """Groups by the time until which they are held, those of one time in order of arrival."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, SequenceGroup]] = []
        """Ends of the holds, numbers of the groups, and these, in order."""
        self._entry_of: dict[SequenceGroup, tuple[float, int, SequenceGroup]] = {}

    def add(self, group: SequenceGroup, until: float) -> None:
        """Hold a group back."""
        self._entry_of[group] = entry = (until, group.number, group)
        insort(self.entries, entry)

    def discard(self, group: SequenceGroup) -> bool:
        """Hold a group no longer; return whether it was held."""
        entry = self._entry_of.pop(group, None)
        if entry is not None:
            del self.entries[bisect_left(self.entries, entry)]
        return entry is not None

    def due(self, now: float) -> Iterator[SequenceGroup]:
        """Take out the groups whose hold has ended, in order."""
        while self.entries and not self.seconds_left(now):
            group = self.entries[0][2]
            self.discard(group)
            yield group

    def seconds_left(self, now: float) -> float:
        """Return how long the first of them is still held."""
        left = self.entries[0][0] - now
        return left if left > _ROUNDING else 0.0
