"""What is to arrive, in the order in which it does."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

When = TypeVar("When", bound=float)
Item = TypeVar("Item")


class ArrivalQueue(Generic[When, Item]):
    """Items by when they arrive: at a time in seconds, or before a step.

    Of those that arrive together, the one with the smaller number comes first.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[When, int, Item]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Item]:
        """Yield what has not arrived, in its order."""
        return (item for _, _, item in sorted(self._heap))

    @property
    def next_at(self) -> When | None:
        """When the next one arrives; ``None``: there is none."""
        return self._heap[0][0] if self._heap else None

    def add(self, at: When, number: int, item: Item) -> None:
        """Add an item.

        Args:
            number: no other has it.
        """
        heappush(self._heap, (at, number, item))

    def due(self, now: When) -> Iterator[tuple[When, Item]]:
        """Take out what arrives until ``now``, with when it does; also what is added meanwhile."""
        while self._heap and self._heap[0][0] <= now:
            at, _, item = heappop(self._heap)
            yield at, item
