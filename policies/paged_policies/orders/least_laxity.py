"""The request with the least time to spare first."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import ComponentSettings
from paged_core.requests.waiting import uncached_tokens
from paged_core.sequence import SequenceGroup
from paged_policies.job_size import expected_end, learns


class LeastLaxitySettings(ComponentSettings):
    """Options of :class:`LeastLaxityOrder`."""

    name: Literal["least_laxity"] = "least_laxity"
    default_slo: PositiveFloat | None = Field(
        default=None,
        description="seconds from arrival to the deadline where a request names none; null: never",
    )
    prompt_tokens_per_second: PositiveFloat = Field(
        default=10000.0, description="speed at which prompts are taken to be computed"
    )
    seconds_per_token: PositiveFloat = Field(
        default=0.02, description="time that each further token is taken to need"
    )


class LeastLaxityOrder(QueueOrder):
    """Least laxity first (Mok, 1983): the deadline minus when it would end if it started now.

    The end is predicted from what a prefix hit leaves to compute, and from the length as
    predicted, or ``max_tokens``. Since ``now`` is the same for all, it is left out of the key.
    """

    def __init__(self, options: LeastLaxitySettings, context: OrderContext, /) -> None:
        self._options, self._kv_cache = options, context.kv_cache
        self._default_slo = float("inf") if options.default_slo is None else options.default_slo
        self._lengths = context.length_predictor
        self.stable = not (context.kv_cache.caches_prefixes or learns(self._lengths))

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        deadline, options = group.request.deadline, self._options
        if deadline is None:
            deadline = group.arrival + self._default_slo
        prompt = uncached_tokens(group, self._kv_cache) / options.prompt_tokens_per_second
        left = expected_end(group, self._lengths) - group.longest
        return (deadline - prompt - left * options.seconds_per_token, group.arrival, group.number)
