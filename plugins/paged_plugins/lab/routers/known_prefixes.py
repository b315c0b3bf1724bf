"""Which prefixes were sent to which replica, as content keys of blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from paged_core.request import Request


def content_keys(request: Request, block_size: int) -> list[int]:
    """Return a number for each full block of the prompt: equal ones mean equal tokens up to there.

    They are hashes: a collision may change where a request goes, and nothing else.
    """
    prompt, key = request.prompt, hash(request.key_extra)
    keys = []
    for end in range(block_size, len(prompt) + 1, block_size):
        key = hash((key, prompt[end - block_size : end]))
        keys.append(key)
    return keys


class KnownPrefixes:
    """Remembers blocks for each replica, and forgets those that were sent least recently.

    A block is sent no later than what follows it in a prompt, and forgotten no earlier: a replica
    that knows a block knows the whole prefix before it.

    Args:
        max_blocks: remembered for each replica.
    """

    def __init__(self, num_replicas: int, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._recent: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(num_replicas)]
        """For each replica, the keys of its blocks, the least recently sent first."""
        self._holders: dict[int, set[int]] = {}
        """For each key, the replicas that know it."""

    def __len__(self) -> int:
        """Blocks remembered, over all replicas."""
        return sum(map(len, self._recent))

    def longest(self, keys: Sequence[int]) -> tuple[int, list[int]]:
        """Return how many leading blocks any replica knows at most, and the replicas that do."""
        depth = 0
        while depth < len(keys) and keys[depth] in self._holders:
            depth += 1
        return depth, sorted(self._holders[keys[depth - 1]]) if depth else []

    def note(self, replica: int, keys: Sequence[int]) -> None:
        """A prompt of these blocks is sent to a replica."""
        recent = self._recent[replica]
        for key in reversed(keys[: self._max_blocks]):  # the first becomes the most recent
            if key in recent:
                recent.move_to_end(key)
            else:
                recent[key] = None
                self._holders.setdefault(key, set()).add(replica)
        while len(recent) > self._max_blocks:
            self._forget(replica, recent.popitem(last=False)[0])

    def _forget(self, replica: int, key: int) -> None:
        holders = self._holders[key]
        holders.remove(replica)
        if not holders:
            del self._holders[key]
