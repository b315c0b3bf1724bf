"""A rate for each tenant, and a burst above it."""

from __future__ import annotations

from itertools import islice
from typing import Literal

from pydantic import Field

from paged_core.engine.contexts import AdmissionContext
from paged_core.interfaces.admission import Admission, Decision, Held, Load, Refused
from paged_core.plugins.component import ComponentSettings
from paged_core.request import Request


class TokenBucketSettings(ComponentSettings):
    """Options of :class:`TokenBucketAdmission`."""

    name: Literal["token_bucket"] = "token_bucket"
    counts: Literal["requests", "prompt_tokens"] = Field(
        default="requests",
        description="unit of `rate` and `burst`; a request of more than `burst` is refused",
    )
    rate: float = Field(
        default=1.0, ge=1e-6, le=1e9, description="of each tenant, per second, at least 1e-6"
    )
    burst: float = Field(
        default=10.0,
        ge=1,
        le=1e9,
        description="of a tenant at once, after it has asked for nothing for long",
    )
    over: Literal["refuse", "hold"] = Field(
        default="refuse", description="what becomes of a request above it: hold, until it is below"
    )


class TokenBucketAdmission(Admission):
    """A bucket for each tenant, which fills at a rate and from which each request takes its cost.

    It is kept as the time at which the bucket is full again: the generic cell rate algorithm
    (ITU-T I.371). In any time t no tenant is given more than ``rate`` t + ``burst``. What is held
    has taken its cost; an aborted request does not give it back.
    """

    def __init__(self, options: TokenBucketSettings, context: AdmissionContext, /) -> None:
        self._options = options
        self._full_at: dict[str, float] = {}
        """By tenant; one that was not asked about for longest comes first."""

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        tenant, options = request.tenant, self._options
        cost = 1 if options.counts == "requests" else len(request.prompt)
        if cost > options.burst:
            return Refused(f"it takes {cost} {options.counts} at once, above {options.burst:g}")
        full_at = max(now, self._full_at.pop(tenant, now))
        begins = full_at + (cost - options.burst) / options.rate
        is_refused = begins > now and options.over == "refuse"
        self._full_at[tenant] = full_at + (0 if is_refused else cost / options.rate)
        self._forget(now)
        if is_refused:
            limit = f"{options.rate:g} {options.counts} a second"
            return Refused(f"tenant {tenant!r} is above {limit}", begins - now)
        return Held(begins) if begins > now else None

    def _forget(self, now: float) -> None:
        """Look at the two that come first, and forget them if their bucket is full."""
        for tenant in list(islice(self._full_at, 2)):
            full_at = self._full_at.pop(tenant)
            if full_at > now:
                self._full_at[tenant] = full_at
