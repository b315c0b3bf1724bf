"""What requests to come will ask the prefix cache for, where that is known: in a replay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property


class Future:
    """The content that each request asks for, request by request, and how many have asked so far.

    An answer takes O(log n) for content that is asked for n times.

    Args:
        asked: for each request, in the order in which they ask, content keys as
            :attr:`~paged_core.interfaces.evictor.BlockInfo.content_key` has them.
    """

    def __init__(self, asked: Iterable[Iterable[int]] = ()) -> None:
        self.position = 0
        """Requests before this one have asked already."""
        self._asked = asked

    def reach(self, position: int) -> None:
        """Requests before this one have asked; it never goes back."""
        self.position = max(self.position, position)

    def next_use(self, content_key: int | None) -> int | None:
        """The next request that asks for this content; ``None``: none does, as far as is known."""
        if content_key is None or content_key not in self._uses:
            return None
        uses = self._uses[content_key]
        place = bisect_left(uses, self.position)
        return uses[place] if place < len(uses) else None

    @cached_property
    def _uses(self) -> dict[int, list[int]]:
        uses: dict[int, list[int]] = {}
        for position, content_keys in enumerate(self._asked):
            for content_key in content_keys:
                uses.setdefault(content_key, []).append(position)
        return uses
