"""The earliest deadline first."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup


class EdfSettings(ComponentSettings):
    """Options of :class:`EdfOrder`."""

    name: Literal["edf"] = "edf"
    default_slo: PositiveFloat | None = Field(
        default=None,
        description="seconds from arrival to the deadline where a request names none; null: never",
    )


class EdfOrder(QueueOrder):
    """Earliest deadline first (Liu and Layland, 1973), by the ``deadline`` of a request.

    Meets all deadlines if any order can, and misses many under overload. A request without a
    deadline starves while others with one keep arriving, unless ``default_slo`` gives it one.
    """

    def __init__(self, options: EdfSettings, context: OrderContext, /) -> None:
        self._default_slo = float("inf") if options.default_slo is None else options.default_slo

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        deadline = group.request.deadline
        if deadline is None:
            deadline = group.arrival + self._default_slo
        return (deadline, group.arrival, group.number)
