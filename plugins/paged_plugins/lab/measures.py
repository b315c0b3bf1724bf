"""The numbers that a run is judged by, and how they follow from its record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from paged_plugins.lab.runs.run_record import (
    ReplicaTotals,
    RequestRecord,
    RunRecord,
)
from paged_plugins.lab.runs.time_histogram import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """The latencies that a request must meet to count as served well (goodput); ``None``: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def limits(self) -> dict[str, float]:
        """Limits that are given, by the kind of latency; without any, there is no goodput."""
        given = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "e2e": self.e2e_ms}
        return {kind: limit for kind, limit in given.items() if limit is not None}


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
    """True if a table shows it without being asked."""

    @property
    def is_share(self) -> bool:
        """True if differences are given in points rather than in percent."""
        return self.unit == "share"


LATENCIES: Final[Mapping[str, str]] = MappingProxyType(
    {"e2e": "completion", "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "queueing": "queueing"}
)
"""The kinds of latencies, and their titles."""


def _latencies() -> Iterator[Measure]:
    shown = {"ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "e2e_ms_p50"}
    for kind, title in LATENCIES.items():
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
            Measure("peak_blocks", "peak blocks", ""),
            Measure("peak_memory_mib", "peak memory", "MiB", "lower", shown=True),
            Measure("jain", "Jain index", "", "higher"),
            Measure("max_slowdown", "max slowdown", "", "lower"),
            Measure("replica_jain", "Jain index of replicas", "", "higher"),
            Measure("replica_max_over_mean", "busiest replica over mean", "", "lower"),
            Measure("steps", "steps", ""),
            Measure("extrapolated_share", "steps extrapolated", "share", "lower", shown=True),
            Measure("idle_share", "idle", "share"),
            Measure("makespan_s", "makespan", "s", "lower"),
            Measure("refused", "refused requests", "", "lower", shown=True),
            Measure("failed", "failed requests", "", "lower", shown=True),
            Measure("cut", "answers cut short", "", "lower", shown=True),
        )
    }
)
"""All of them, by name, the most important first."""
MEMORY_SHARES: Final = ("held_share", "reserved_share", "internal_share", "external_share")
"""Measures that one engine alone has."""
BALANCE: Final = ("replica_jain", "replica_max_over_mean")
"""Measures that a cluster alone has."""
FAIRNESS: Final = ("jain", "max_slowdown")
"""Measures of how the requests that were served compare."""
SHOWN: Final = tuple(name for name, measure in MEASURES.items() if measure.shown)
"""Names of those that are compared without being asked for."""


_LONG = 1e15


def number_text(value: float, digits: int, sign: str = "") -> str:
    """Return a number with its thousands apart; one too long to be read by its exponent."""
    return f"{value:{sign},.{digits}f}" if abs(value) < _LONG else f"{value:{sign}.3g}"


def value_text(measure: str, value: float) -> str:
    """Return a value of a measure with its unit: ``41.2%``, ``1,234 ms``, ``17``."""
    unit = MEASURES[measure].unit
    if unit == "share":
        return f"{100 * value:.1f}%"
    if not isfinite(value):
        return "-"
    digits = 0 if value == int(value) or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{number_text(value, digits)} {unit}".rstrip()


_PERCENTILES = (50, 90, 99)
_OF_STEPS = {
    "preemptions": "num_preemptions",
    "recomputed_tokens": "recomputed_tokens",
    "evictions": "num_evictions",
    "peak_blocks": "peak_blocks",
    "steps": "num_steps",
}
"""Measures of what engines did, and the totals that they are."""


_SERVICE_OF_OUTPUT = 2
"""Weight of a generated token, in prompt tokens: Sheng et al., "Fairness in serving large
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


def balance(replicas: Sequence[ReplicaTotals]) -> dict[str, float]:
    """Return how evenly the replicas of a cluster were used, by the tokens that they generated.

    Jain's index (1: equal), and the busiest replica over the mean; nothing if there are no tokens.
    """
    generated = [float(each.num_generated) for each in replicas]
    if not any(generated):
        return {}
    busiest = max(generated) * len(generated) / sum(generated)
    return dict(zip(BALANCE, (jain_index(generated), busiest), strict=True))


def _service_rate(pairs: Sequence[tuple[int, float]]) -> float:
    return sum(service for service, _ in pairs) / sum(seconds for _, seconds in pairs)


def measures(record: RunRecord, slo: ServiceLevel) -> dict[str, float]:
    """Return the measures of a run, by name, in the order of :data:`MEASURES`.

    What the run cannot tell is left out: latencies of no requests, rates of no time, goodput
    without limits.
    """
    served = [each for each in record.requests if each.is_served]
    totals, num_tokens = record.totals, sum(each.num_output for each in served)
    found = _request_latencies(record)
    for part in _PERCENTILES:
        if (gap := percentile(record.token_gaps, part / 100)) is not None:
            found[f"itl_ms_p{part}"] = 1e3 * gap
    if totals.elapsed > 0:
        found["throughput_tokens_per_s"] = num_tokens / totals.elapsed
        found["requests_per_s"] = len(served) / totals.elapsed
        if slo.limits:
            found[GOODPUT] = sum(meets(each, slo) for each in served) / totals.elapsed
    due = [(each, each.deadline) for each in record.requests if each.deadline is not None]
    if due:
        met = sum(each.is_whole and each.finished <= deadline for each, deadline in due)
        found["missed_deadlines"] = (len(due) - met) / len(due)
    admitted = [each for each in record.requests if each.admitted is not None]
    if num_prompt := sum(each.num_prompt for each in admitted):
        found["hit_rate"] = sum(each.num_cached for each in admitted) / num_prompt
    found |= fairness(served)
    if totals.num_steps or not served:  # else its steps are not told
        found |= {name: float(getattr(totals, total)) for name, total in _OF_STEPS.items()}
        if totals.extrapolated_steps:
            found["extrapolated_share"] = totals.extrapolated_steps / totals.num_steps
        if totals.elapsed > 0:
            busy = totals.busy_seconds / (totals.elapsed * (len(record.replicas) or 1))
            found["idle_share"] = max(0.0, 1 - busy)
        if not record.replicas:
            found |= {name: getattr(totals, name) for name in MEMORY_SHARES}
    found["makespan_s"] = totals.elapsed
    found |= balance(record.replicas)
    if totals.peak_memory:
        found["peak_memory_mib"] = totals.peak_memory / (1 << 20)
    found["refused"] = float(sum(each.is_refused for each in record.requests))
    found["failed"] = len(record.requests) - len(served) - found["refused"]
    found["cut"] = float(sum(each.num_cut > 0 for each in served))
    return {name: found[name] for name in MEASURES if name in found}


def meets(request: RequestRecord, slo: ServiceLevel) -> bool:
    """Say whether a request was served, as much as it asked for, within every limit of ``slo``."""
    if not request.is_whole or request.first_token is None:
        return False
    taken = {
        "ttft": request.first_token - request.arrival,
        "tpot": request.time_per_token or 0.0,
        "e2e": request.finished - request.arrival,
    }
    return all(1e3 * taken[kind] <= limit for kind, limit in slo.limits.items())


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
    served = [each for each in record.requests if each.is_served]
    if served and all(each.first_token is None for each in served):  # it is not told
        del times["ttft"]
    if served and all(each.admitted is None for each in served):
        del times["queueing"]
    found = {}
    for name, values in times.items():
        milliseconds = 1e3 * np.asarray(values)
        found[f"{name}_ms_mean"] = float(milliseconds.mean())
        shares = np.percentile(milliseconds, _PERCENTILES).tolist()
        found |= {
            f"{name}_ms_p{part}": share for part, share in zip(_PERCENTILES, shares, strict=True)
        }
    return found
