"""What pictures need of the records of runs: latencies of all seeds, and the steps of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paged_plugins.lab.measures import time_per_token
from paged_plugins.lab.results import Results
from paged_plugins.lab.run_record import RequestRecord, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One arm on one workload."""

    num_requests: int
    """Of all seeds together."""
    latencies: dict[str, Sequence[float]] = field(default_factory=dict)
    """``ttft``, ``tpot`` and ``e2e``: milliseconds, ascending, of those that have it."""
    first: RunRecord
    """Of the first seed that was kept."""


def observe(results: Results, arm: str, workload: str) -> Observed | None:
    """Read the records of an arm on a workload; ``None``: none was kept."""
    times: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}
    first, num_requests = None, 0
    for seed in results.seeds:
        record = results.record(arm, workload, seed)
        if record is None:
            continue
        first = first or record
        num_requests += len(record.requests)
        for request in record.requests:
            _add(times, request)
    if first is None:
        return None
    latencies = {name: sorted(values) for name, values in times.items()}
    return Observed(num_requests=num_requests, latencies=latencies, first=first)


def _add(times: dict[str, list[float]], request: RequestRecord) -> None:
    if request.finish_reason not in {"stop", "length"} or request.first_token is None:
        return
    times["ttft"].append(1e3 * (request.first_token - request.arrival))
    times["e2e"].append(1e3 * (request.finished - request.arrival))
    per_token = time_per_token(request)
    if per_token is not None:
        times["tpot"].append(1e3 * per_token)
