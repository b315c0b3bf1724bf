"""The most urgent request first."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup


class PrioritySettings(ComponentSettings):
    """Options of :class:`PriorityOrder`."""

    name: Literal["priority"] = "priority"
    aging: NonNegativeFloat = Field(
        default=0.0, description="priority levels that a request rises per second of waiting"
    )


class PriorityOrder(QueueOrder):
    """The lowest ``priority`` of a request first, then the earliest arrival, as in vLLM.

    Without ``aging`` a request starves while better ones keep arriving; with it, every request
    comes first in the end.
    """

    def __init__(self, options: PrioritySettings, context: OrderContext, /) -> None:
        self._aging = options.aging

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        # all waiting requests age alike, so only the differences in arrival matter
        urgency = group.request.priority + self._aging * group.arrival
        return (urgency, group.arrival, group.number)
