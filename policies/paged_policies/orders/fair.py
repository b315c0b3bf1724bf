"""The request of the tenant that was served least first."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Literal

from pydantic import Field, PositiveFloat

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup


class FairSettings(ComponentSettings):
    """Options of :class:`FairOrder`."""

    name: Literal["fair"] = "fair"
    input_weight: PositiveFloat = Field(default=1.0, description="cost of a prompt token")
    output_weight: PositiveFloat = Field(default=2.0, description="cost of a generated token")
    weights: dict[str, PositiveFloat] = Field(
        default_factory=dict, description="share of a tenant, by its name; 1 for the others"
    )


class FairOrder(QueueOrder):
    """Fair among tenants: the virtual token counter of Sheng et al. (2024).

    Each tenant has a counter of the tokens it was served, weighted by their cost; the lowest comes
    first. A tenant that returns starts at the counter that was served last, so idle time gives no
    credit. A tenant that always has requests waiting is served as often as any other: none starves.
    """

    stable = False

    def __init__(self, options: FairSettings, context: OrderContext, /) -> None:
        self._options = options
        self._counters: defaultdict[str, float] = defaultdict(float)
        self._level = 0.0
        """The counter of the tenant admitted last; it never falls."""
        self._known: dict[str, int] = {}
        """Waiting and running requests, and how many of their prompt tokens were charged."""
        self._live = Counter[str]()
        """Waiting and running requests of each tenant that has some."""
        self._generating: dict[str, str] = {}
        """The tenant of each request whose prompt was charged: a decode asks for nothing else."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        tenant = group.request.tenant
        if group.id not in self._known:
            self._known[group.id] = 0
            if not self._live[tenant]:
                self._counters[tenant] = max(self._counters[tenant], self._level)
            self._live[tenant] += 1
        return (self._counters[tenant], group.arrival, group.number)

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        """Charge the tenant for tokens that were scheduled; repeated work costs again."""
        options, tenant = self._options, self._generating.get(group.id)
        as_input = 0
        if tenant is None:
            tenant, charged = group.request.tenant, self._known.get(group.id, 0)
            if not charged:
                self._level = max(self._level, self._counters[tenant])
            length = len(group.request.prompt)
            as_input = min(num_tokens, length - charged)
            self._known[group.id] = charged + as_input
            if charged + as_input == length:
                self._generating[group.id] = tenant
        cost = as_input * options.input_weight + (num_tokens - as_input) * options.output_weight
        self._counters[tenant] += cost / options.weights.get(tenant, 1.0)

    def left(self, group: SequenceGroup, /) -> None:
        """Forget a request that has ended."""
        if self._known.pop(group.id, None) is not None:
            tenant = group.request.tenant
            self._live[tenant] -= 1
            if not self._live[tenant]:
                del self._live[tenant]
        self._generating.pop(group.id, None)
