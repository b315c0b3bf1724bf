"""The highest response ratio next."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup
from paged_policies.job_size import num_tokens_left


class HrrnSettings(ComponentSettings):
    """Options of :class:`HrrnOrder`."""

    name: Literal["hrrn"] = "hrrn"
    tokens_per_second: PositiveFloat = Field(
        default=1000.0, description="speed at which a request is taken to be served"
    )


class HrrnOrder(QueueOrder):
    """Highest response ratio next (Brinch Hansen, 1971): waiting time over service time.

    Prefers short jobs, as ``sjf`` does, but no request starves: the ratio of a long one grows too.
    Service is for what a prefix hit leaves to compute. The queue is sorted again in every step,
    with a look-up of each request, which costs time where many wait.
    """

    stable = False

    def __init__(self, options: HrrnSettings, context: OrderContext, /) -> None:
        self._tokens_per_second = options.tokens_per_second
        self._kv_cache, self._lengths = context.kv_cache, context.length_predictor

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        left = num_tokens_left(group, self._kv_cache, self._lengths)
        service = max(1, left) / self._tokens_per_second
        return -(now - group.arrival) / service
