"""Runs of adjacent free blocks."""

from __future__ import annotations


class FreeRuns:
    """Finds the first run of a length, and the longest, in O(log n).

    A segment tree: each node knows, for its range of blocks, the free run at its start, the one at
    its end, and the longest one anywhere in it.
    """

    def __init__(self, num_blocks: int) -> None:
        size = 1
        while size < num_blocks:
            size *= 2
        self._size = size
        self._heads = [0] * (2 * size)
        self._tails = [0] * (2 * size)
        self._bests = [0] * (2 * size)
        for leaf in range(size, size + num_blocks):
            self._heads[leaf] = self._tails[leaf] = self._bests[leaf] = 1
        width = 2
        first = size // 2
        while first:
            for node in range(first, 2 * first):
                self._combine(node, width)
            first //= 2
            width *= 2

    @property
    def longest(self) -> int:
        """Blocks in the longest free run."""
        return self._bests[1]

    def first_fit(self, count: int) -> int | None:
        """Return where the first run of ``count`` or more starts; ``None``: there is none."""
        if count > self._bests[1]:
            return None
        node, start, width = 1, 0, self._size
        while width > 1:
            width //= 2
            left = 2 * node
            if self._bests[left] >= count:
                node = left
            elif self._tails[left] + self._heads[left + 1] >= count:
                return start + width - self._tails[left]
            else:
                node, start = left + 1, start + width
        return start

    def set_free(self, block: int, *, free: bool) -> None:
        """Say whether a block is free."""
        node = self._size + block
        self._heads[node] = self._tails[node] = self._bests[node] = int(free)
        width = 2
        node //= 2
        while node:
            self._combine(node, width)
            node //= 2
            width *= 2

    def _combine(self, node: int, width: int) -> None:
        left, right, half = 2 * node, 2 * node + 1, width // 2
        heads, tails, bests = self._heads, self._tails, self._bests
        heads[node] = heads[left] if heads[left] < half else half + heads[right]
        tails[node] = tails[right] if tails[right] < half else half + tails[left]
        bests[node] = max(bests[left], bests[right], tails[left] + heads[right])
