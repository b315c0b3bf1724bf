"""The numbers that a run is judged by, and how they follow from its record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord, RunTotals
from paged_plugins.lab.runs.time_histogram import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """The latencies that a request must meet to count as served well (goodput); ``None``: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def has_limits(self) -> bool:
        """Whether there is one at all; without, there is no goodput."""
        return self != ServiceLevel()


GOODPUT: Final = "goodput_per_s"
"""The measure that limits on latencies make: requests within all of them."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number that a run is judged by."""

    name: str
    title: str
    unit: str
    """``share``: 0 to 1, and differences are points of a hundred; ``""``: a count or a ratio."""
    better: Literal["higher", "lower"] | None = None
    """Which way is better; ``None``: neither, it explains others."""
    shown: bool = field(default=False, kw_only=True)
    """Whether a table shows it without being asked."""

    @property
    def is_share(self) -> bool:
        """Whether differences are given in points rather than in percent."""
        return self.unit == "share"


def _latencies() -> Iterator[Measure]:
    shown = {"ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "e2e_ms_p50"}
    titles = {"e2e": "completion", "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL"}
    for kind, title in (titles | {"queueing": "queueing"}).items():
        for part in ("mean", "p50", "p90", "p99"):
            name = f"{kind}_ms_{part}"
            if name != "itl_ms_mean":
                yield Measure(name, f"{title} {part}", "ms", "lower", shown=name in shown)


MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Measure(GOODPUT, "goodput", "requests/s", "higher", shown=True),
            Measure("throughput_tokens_per_s", "throughput", "tokens/s", "higher", shown=True),
            Measure("requests_per_s", "requests served", "requests/s", "higher"),
            Measure("missed_deadlines", "missed deadlines", "share", "lower", shown=True),
            Measure("hit_rate", "hit rate", "share", "higher", shown=True),
            *_latencies(),
            Measure("preemptions", "preemptions", "", "lower", shown=True),
            Measure("recomputed_tokens", "recomputed tokens", "", "lower", shown=True),
            Measure("evictions", "evictions", "", "lower", shown=True),
            Measure("held_share", "memory held", "share"),
            Measure("reserved_share", "memory reserved", "share", "lower"),
            Measure("internal_share", "internal fragmentation", "share", "lower"),
            Measure("external_share", "external fragmentation", "share", "lower"),
            Measure("jain", "Jain index", "", "higher"),
            Measure("max_slowdown", "max slowdown", "", "lower"),
            Measure("steps", "steps", ""),
            Measure("idle_share", "idle", "share"),
            Measure("makespan_s", "makespan", "s", "lower"),
            Measure("failed", "failed requests", "", "lower", shown=True),
        )
    }
)
"""All of them, by name, the most important first."""
SHOWN: Final = tuple(name for name, measure in MEASURES.items() if measure.shown)
"""Names of those that are compared without being asked for."""


def percentiles(kind: str, counts: Mapping[int, int]) -> dict[str, float]:
    """Return the measures ``KIND_ms_p50``, ``_p90`` and ``_p99``; none if there are no times.

    Args:
        counts: by bucket, see :mod:`paged_plugins.lab.runs.time_histogram`.
    """
    found = {share: percentile(counts, share / 100) for share in (50, 90, 99)}
    return {
        f"{kind}_ms_p{share}": 1e3 * seconds
        for share, seconds in found.items()
        if seconds is not None
    }


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
    shared = [_service_rate(pairs) for pairs in by_tenant.values()] if any(by_tenant) else rates
    return {"jain": jain_index(shared), "max_slowdown": _service_rate(requests) / min(rates)}


def _service_rate(pairs: Sequence[tuple[int, float]]) -> float:
    return sum(service for service, _ in pairs) / sum(seconds for _, seconds in pairs)


def measures(record: RunRecord, slo: ServiceLevel) -> dict[str, float]:
    """Return the measures of a run, by name, in the order of :data:`MEASURES`.

    What the run cannot tell is left out: latencies of no requests, rates of no time, goodput
    without limits.
    """
    served = [each for each in record.requests if each.is_served]
    found = _rates(served, record.totals.elapsed, slo)
    found |= _request_latencies(record)
    found |= percentiles("itl", record.token_gaps)
    if due := [each for each in record.requests if each.deadline is not None]:
        found["missed_deadlines"] = sum(map(_is_late, due)) / len(due)
    admitted = [each for each in record.requests if each.admitted is not None]
    if num_prompt := sum(each.num_prompt for each in admitted):
        found["hit_rate"] = sum(each.num_cached for each in admitted) / num_prompt
    found |= fairness(served)
    found |= _of_totals(record.totals)
    found["failed"] = float(len(record.requests) - len(served))
    return {name: found[name] for name in MEASURES if name in found}


def meets(request: RequestRecord, slo: ServiceLevel) -> bool:
    """Say whether a request was served within every limit of ``slo``."""
    if not request.is_served or request.first_token is None:
        return False
    per_token = request.time_per_token
    taken = (
        (slo.ttft_ms, request.first_token - request.arrival),
        (slo.tpot_ms, 0.0 if per_token is None else per_token),
        (slo.e2e_ms, request.finished - request.arrival),
    )
    return all(limit is None or 1e3 * seconds <= limit for limit, seconds in taken)


def _is_late(request: RequestRecord) -> bool:
    is_served = request.is_served
    return request.deadline is not None and not (is_served and request.finished <= request.deadline)


def _rates(served: Sequence[RequestRecord], seconds: float, slo: ServiceLevel) -> dict[str, float]:
    if seconds <= 0:
        return {}
    found = {
        "throughput_tokens_per_s": sum(each.num_output for each in served) / seconds,
        "requests_per_s": len(served) / seconds,
    }
    if slo.has_limits:
        found[GOODPUT] = sum(meets(each, slo) for each in served) / seconds
    return found


def _request_latencies(record: RunRecord) -> dict[str, float]:
    end = max((each.finished for each in record.requests), default=0.0)
    times: dict[str, list[float]] = defaultdict(list)
    for each in record.requests:
        is_served = each.is_served
        first = each.first_token if is_served else None
        times["ttft"].append((end if first is None else first) - each.arrival)
        times["e2e"].append((each.finished if is_served else end) - each.arrival)
        times["queueing"].append((end if each.admitted is None else each.admitted) - each.arrival)
        per_token = each.time_per_token if is_served else None
        if per_token is not None:
            times["tpot"].append(per_token)
    found = {}
    for name, values in times.items():
        milliseconds = 1e3 * np.asarray(values)
        p50, p90, p99 = np.percentile(milliseconds, (50, 90, 99))
        found[f"{name}_ms_mean"] = float(milliseconds.mean())
        found |= {f"{name}_ms_p50": float(p50), f"{name}_ms_p90": float(p90)}
        found[f"{name}_ms_p99"] = float(p99)
    return found


def _of_totals(totals: RunTotals) -> dict[str, float]:
    found = {
        "preemptions": float(totals.num_preemptions),
        "recomputed_tokens": float(totals.recomputed_tokens),
        "evictions": float(totals.num_evictions),
        "held_share": totals.held_share,
        "reserved_share": totals.reserved_share,
        "internal_share": totals.internal_share,
        "external_share": totals.external_share,
        "steps": float(totals.num_steps),
        "makespan_s": totals.elapsed,
    }
    if totals.elapsed > 0:
        found["idle_share"] = max(0.0, 1 - totals.busy_seconds / totals.elapsed)
    return found
