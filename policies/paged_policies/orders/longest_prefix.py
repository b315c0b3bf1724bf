"""The request with the longest cached prefix first."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup


class LongestPrefixSettings(ComponentSettings):
    """Options of :class:`LongestPrefixOrder`."""

    name: Literal["longest_prefix"] = "longest_prefix"
    aging: NonNegativeFloat = Field(
        default=0.0, description="tokens by which a prefix counts as longer per second of waiting"
    )


class LongestPrefixOrder(QueueOrder):
    """Longest cached prefix first, as in SGLang (Zheng et al., 2024); ties in order of arrival.

    Uses what is cached before it is evicted, so fewer tokens are computed in all. Without ``aging``
    a request that shares nothing starves while others keep arriving that do; with it, every request
    comes first in the end. Every waiting request is looked up in every step in which one may be
    admitted, which costs time where many requests wait.
    """

    stable = False

    def __init__(self, options: LongestPrefixSettings, context: OrderContext, /) -> None:
        self._aging = options.aging
        self._kv_cache = context.kv_cache

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        sequence = group.sequences[0]
        hit = self._kv_cache.lookup(sequence, sequence.num_tokens - 1)
        # all gain alike as time passes, so only the differences in arrival matter
        missing = self._aging * group.arrival - len(hit.blocks) * self._kv_cache.block_size
        return (missing, group.arrival, group.number)
