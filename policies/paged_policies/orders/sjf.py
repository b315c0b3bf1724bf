"""The shortest job first."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup
from paged_policies.job_size import learns, num_tokens_left


class SjfSettings(ComponentSettings):
    """Options of :class:`SjfOrder`."""

    name: Literal["sjf"] = "sjf"
    aging: NonNegativeFloat = Field(
        default=0.0, description="tokens by which a request counts as shorter per second of waiting"
    )


class SjfOrder(QueueOrder):
    """Shortest job first, by the tokens left to compute and to generate, as predicted or at most.

    Tokens that a prefix hit would skip do not count: the smallest job is the one that is the least
    work now. With a prefix cache, waiting requests are therefore looked up in every step in which
    one may be admitted.

    Gives the lowest mean latency where sizes are known (Smith, 1956). Without ``aging`` a long
    request starves while short ones keep arriving; with it, every request comes first in the end.
    """

    def __init__(self, options: SjfSettings, context: OrderContext, /) -> None:
        self._aging, self._kv_cache = options.aging, context.kv_cache
        self._lengths = context.length_predictor
        self.stable = not (context.kv_cache.caches_prefixes or learns(self._lengths))

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        # all waiting requests age alike, so only the differences in arrival matter
        left = num_tokens_left(group, self._kv_cache, self._lengths)
        return left + self._aging * group.arrival
