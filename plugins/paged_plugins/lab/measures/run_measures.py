"""Measures of a run, from the record of it.

A request is *served* if it ended by a stop condition or by its length. One that failed (refused,
ignored, aborted, ended by an error) stays in the measures: it waits for its first token, and for
its end, until the run ends. So an arm gains nothing by failing requests; ``failed`` counts them.

Percentiles interpolate linearly between requests (numpy's ``linear``, definition 7 of Hyndman and
Fan, "Sample quantiles in statistical packages", 1996). Those of the time between tokens are read of
a histogram, within 0.5%.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from paged_plugins.lab.measures.fairness import fairness
from paged_plugins.lab.measures.measure import GOODPUT, MEASURES
from paged_plugins.lab.measures.percentiles import percentiles
from paged_plugins.lab.measures.service_level import ServiceLevel
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord, RunTotals


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
