"""Whoever has the most in the cache first."""

from __future__ import annotations

from typing import Any, Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.queue_order import OrderParts, QueueOrder
from paged_core.sequence import SequenceGroup


class LongestPrefixSettings(ComponentSettings):
    """Options of :class:`LongestPrefixOrder`."""

    name: Literal["longest_prefix"] = "longest_prefix"


class LongestPrefixOrder(QueueOrder):
    """Longest cached prefix first, as in SGLang (Zheng et al., 2024); ties in order of arrival.

    Uses what is cached before it is evicted, so fewer tokens are computed in all. A request that
    shares nothing starves while others keep arriving that do. Every waiting request is looked up
    in every step, which costs time where very many wait.
    """

    stable = False

    def __init__(self, options: LongestPrefixSettings, parts: OrderParts, /) -> None:
        self._kv_cache = parts.kv_cache

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        sequence = group.sequences[0]
        hit = self._kv_cache.lookup(sequence, len(sequence.tokens) - 1)
        return (-len(hit.blocks), group.arrival, group.number)
