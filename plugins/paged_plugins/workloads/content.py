"""Content ids: what prompts are made of, and the token ids that they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

FIRST_OWN_ID = 10**15
"""Content ids from here on are those of prompts given by their length alone. No range that is
written in a file reaches them, and no drawn workload."""


class ContentIds:
    """Hands out content ids that nothing else has.

    Args:
        first: the first of them.
    """

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def take(self, count: int) -> range:
        """Return so many of them."""
        taken = range(self._next, self._next + count)
        self._next = taken.stop
        return taken


def token_ids(parts: Iterable[range], vocab_size: int | None) -> list[int]:
    """Return a token id for each content id of ``parts``.

    Args:
        vocab_size: token ids are below it, and look random: the finalizer of SplitMix64 (Steele,
            Lea and Flood, "Fast splittable pseudorandom number generators", 2014) of the content
            id. ``None``: any token id is served, so that the content ids themselves are returned.
    """
    ids = list(chain.from_iterable(parts))
    if vocab_size is None:
        return ids
    import numpy as np

    mixed = np.array(ids, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: list[int] = ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(vocab_size)).tolist()
    return found
