"""First come, first served."""

from __future__ import annotations

from typing import Any, Literal

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup


class FcfsSettings(ComponentSettings):
    """Options of :class:`FcfsOrder`."""

    name: Literal["fcfs"] = "fcfs"


class FcfsOrder(QueueOrder):
    """The order of the queue itself: arrivals go to its end, preempted groups to its head."""

    def __init__(self, options: FcfsSettings, context: OrderContext, /) -> None:
        pass

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return 0
