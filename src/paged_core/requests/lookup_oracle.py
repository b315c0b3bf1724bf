"""The content that future requests will look up in the prefix cache, known in a replay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property


class LookupOracle:
    """The content that each request looks up, in their order, and how many have done so already.

    A query takes O(log n) for content that is looked up n times.

    Args:
        asked: for each request, in the order of their lookups, content keys as
            :attr:`~paged_core.interfaces.evictor.BlockInfo.content_key` has them.
    """

    def __init__(self, asked: Iterable[Iterable[int]] = ()) -> None:
        self.position = 0
        """Requests before this one have made their lookup."""
        self._asked = asked

    def reach(self, position: int) -> None:
        """Requests before this one have made their lookup; the position never goes back."""
        self.position = max(self.position, position)

    def next_use(self, content_key: int | None) -> int | None:
        """The next request that looks up this content; ``None``: none is known."""
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
