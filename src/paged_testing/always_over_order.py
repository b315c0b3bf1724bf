"""An order under which every quantum is always over, to test schedulers with."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from paged_core.component import Component, ComponentSettings
from paged_core.interfaces.queue_order import OrderParts, QueueOrder
from paged_core.sequence import SequenceGroup, Status


class AlwaysOverSettings(ComponentSettings):
    """Options of :class:`AlwaysOverOrder`."""

    name: Literal["always_over"] = "always_over"
    waiting_first: bool = Field(
        default=True, description="whether waiting groups come before all running ones"
    )


class AlwaysOverOrder(QueueOrder):
    """First come, first served, where every running group may be preempted at any time.

    With ``waiting_first``, for any waiting group; otherwise for one that came earlier.
    """

    def __init__(self, options: AlwaysOverSettings, parts: OrderParts, /) -> None:
        self._waiting_first = options.waiting_first

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return (self._waiting_first and group.status is Status.RUNNING, group.number)

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        """Always true."""
        return True


ALWAYS_OVER = Component(
    "queue_order",
    AlwaysOverSettings,
    f"{__name__}:AlwaysOverOrder",
    summary="every quantum is always over",
)
