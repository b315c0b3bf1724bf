"""The request of the tenant that was served least first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat

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
        default_factory=dict, description="weight of a tenant, by its name; 1 for the others"
    )
    max_idle: NonNegativeInt = Field(
        default=4096, description="tenants without a request that are remembered, at most"
    )


@dataclass(slots=True)
class _Tenant:
    input_cost: float
    output_cost: float
    counter: float = 0.0
    num_live: int = 0
    """Waiting and running requests."""


class FairOrder(QueueOrder):
    """Fair among tenants: the virtual token counter of Sheng et al. (2024).

    Each tenant has a counter of the tokens it was served, weighted by their cost; the lowest comes
    first. A tenant that returns starts at the counter that was served last, so idle time gives no
    credit. A tenant that always has requests waiting is served as often as any other: none starves.
    Of tenants without a request, those that left longest ago are forgotten first.
    """

    stable = False

    def __init__(self, options: FairSettings, context: OrderContext, /) -> None:
        self._options = options
        self._tenants: dict[str, _Tenant] = {}
        self._idle = OrderedDict[str, None]()
        """Tenants without a request, the one that left last at the end."""
        self._level = 0.0
        """The counter of the tenant admitted last; it never falls."""
        self._known: dict[str, int] = {}
        """Waiting and running requests, and how many of their prompt tokens were charged."""
        self._generating: dict[str, _Tenant] = {}
        """The tenant of each request whose prompt was charged: a decode asks for nothing else."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        tenant = self._tenant(group.request.tenant)
        if group.id not in self._known:
            self._known[group.id] = 0
            if not tenant.num_live:
                self._idle.pop(group.request.tenant, None)
                tenant.counter = max(tenant.counter, self._level)
            tenant.num_live += 1
        return (tenant.counter, group.arrival, group.number)

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            options, share = self._options, self._options.weights.get(name, 1.0)
            costs = options.input_weight / share, options.output_weight / share
            tenant = self._tenants[name] = _Tenant(*costs)
        return tenant

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        """Charge the tenant for tokens that were scheduled; repeated work costs again."""
        tenant = self._generating.get(group.id)
        if tenant is None:
            tenant, charged = self._tenant(group.request.tenant), self._known.get(group.id, 0)
            if not charged:
                self._level = max(self._level, tenant.counter)
            length = len(group.request.prompt)
            as_input = min(num_tokens, length - charged)
            self._known[group.id] = charged + as_input
            if charged + as_input == length:
                self._generating[group.id] = tenant
            tenant.counter += as_input * tenant.input_cost
            num_tokens -= as_input
        tenant.counter += num_tokens * tenant.output_cost

    def left(self, group: SequenceGroup, /) -> None:
        """Forget a request that has ended."""
        if self._known.pop(group.id, None) is not None:
            name = group.request.tenant
            tenant = self._tenant(name)
            tenant.num_live -= 1
            if not tenant.num_live:
                self._idle[name] = None
            if len(self._idle) > self._options.max_idle:
                del self._tenants[self._idle.popitem(last=False)[0]]
        self._generating.pop(group.id, None)
