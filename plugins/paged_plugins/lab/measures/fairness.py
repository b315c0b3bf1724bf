"""How evenly requests, tenants or replicas are served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from paged_plugins.lab.runs.run_record import RequestRecord

_SERVICE_OF_OUTPUT = 2
"""What a generated token counts for, in prompt tokens: Sheng et al., "Fairness in serving large
language models", OSDI 2024."""


def jain_index(shares: Sequence[float]) -> float:
    """Return the fairness of shares, from 1/n (one of n has all) to 1 (all are equal).

    Jain, Chiu and Hawe, DEC-TR-301, 1984.

    Args:
        shares: not all 0.
    """
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def fairness(served: Sequence[RequestRecord]) -> dict[str, float]:
    """Return Jain's index of the rate of service, and the largest slowdown of a request.

    The rate of service is the service that requests got by the time that they spent in the engine:
    of tenants where any is named, else of requests. The slowdown of a request is the rate of all by
    its own.
    """
    by_tenant: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for each in served:
        seconds = each.finished - each.arrival
        if seconds > 0:
            service = each.num_prompt + _SERVICE_OF_OUTPUT * each.num_output
            by_tenant[each.tenant].append((service, seconds))
    requests = [pair for pairs in by_tenant.values() for pair in pairs]
    if not requests:
        return {}
    rates = [service / seconds for service, seconds in requests]
    shared = [_rate(pairs) for pairs in by_tenant.values()] if any(by_tenant) else rates
    return {"jain": jain_index(shared), "max_slowdown": _rate(requests) / min(rates)}


def _rate(pairs: Sequence[tuple[int, float]]) -> float:
    return sum(service for service, _ in pairs) / sum(seconds for _, seconds in pairs)
