"""What requests to come will ask the prefix cache for, where that is known: in a replay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property

from paged_core.block_key import BlockKey, extend_keys
from paged_core.request import Request


class Future:
    """The content that each request asks for, request by request, and how many have asked so far.

    It is read when it is first asked about, in one pass; an answer takes O(log n) for content that
    is asked for n times.

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


def foresee(requests: Iterable[Request], block_size: int) -> Future:
    """Return the future in which these requests ask, in this order, for their prompts.

    What they generate is left out: it is published, and not asked for. The last token of a prompt
    is always computed, so a block that ends with it need not be there.
    """
    return Future(_asked(request, block_size) for request in requests)


def _asked(request: Request, block_size: int) -> list[int]:
    keys: list[BlockKey] = []
    count = (len(request.prompt) - 1) // block_size
    extend_keys(keys, request.prompt, block_size, request.key_extra, count)
    return [hash(key) for key in keys]
