"""The most urgent first."""

from __future__ import annotations

from typing import Any, Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.queue_order import OrderParts, QueueOrder
from paged_core.sequence import SequenceGroup


class PrioritySettings(ComponentSettings):
    """Options of :class:`PriorityOrder`."""

    name: Literal["priority"] = "priority"


class PriorityOrder(QueueOrder):
    """The lowest ``priority`` of a request first, then the earliest arrival, as in vLLM.

    A request can starve while better ones keep arriving.
    """

    def __init__(self, options: PrioritySettings, parts: OrderParts, /) -> None:
        pass

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return (group.request.priority, group.request.arrival, group.number)
