"""The request first that gains the most quality of experience for its memory."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup


class QoeSettings(ComponentSettings):
    """Options of :class:`QoeOrder`."""

    name: Literal["qoe"] = "qoe"
    expected_ttft: NonNegativeFloat = Field(
        default=1.0, description="seconds after its arrival at which a user expects the first token"
    )
    tokens_per_second: PositiveFloat = Field(default=4.8, description="speed at which a user reads")
    horizon: PositiveFloat = Field(
        default=10.0, description="seconds ahead over which serving and waiting are compared"
    )
    aging: NonNegativeFloat = Field(
        default=0.0, description="gain per token that a request is credited per second of waiting"
    )


class QoeOrder(QueueOrder):
    """Gain in quality of experience per token of context, as in Andes (Liu et al., 2024).

    The quality is the area under the curve of tokens that a user has read, as a share of the area
    that was expected. Serving a request for ``horizon`` seconds adds area as soon as the text that
    it has sent is read; what already waited long has little to gain. Andes also preempts running
    requests that are ahead of their readers; here running ones go on.
    """

    stable = False

    def __init__(self, options: QoeSettings, context: OrderContext, /) -> None:
        self._options = options

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        options, gain = self._options, 0.0
        end, unread = options.horizon, 0.0
        if group.first_token_at is not None:
            sent = group.longest - len(group.request.prompt)
            unread = max(0.0, sent / options.tokens_per_second - (now - group.first_token_at))
        expected = now + end - group.arrival - options.expected_ttft
        if expected > 0:
            gain = min(1.0, (max(0.0, end - unread) / expected) ** 2)
        credit = options.aging * (now - group.arrival)
        return (-gain / group.longest - credit, group.arrival, group.number)
