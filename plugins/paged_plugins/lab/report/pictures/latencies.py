"""The latencies of the requests of all seeds of an arm on a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paged_plugins.lab.results.results import Results
from paged_plugins.lab.runs.run_record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of one arm on one workload."""

    num_requests: int
    """Those that failed are among them."""
    milliseconds: Mapping[str, Sequence[float]]
    """By ``ttft``, ``tpot`` and ``e2e``: of the requests that have it."""


def latencies(results: Results, arm: str, workload: str) -> Latencies:
    """Read them from the records that were kept."""
    times: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}
    num_requests = 0
    for seed in results.seeds:
        record = results.record(arm, workload, seed)
        for request in record.requests if record is not None else ():
            num_requests += 1
            _add(times, request)
    return Latencies(num_requests=num_requests, milliseconds=times)


def _add(times: dict[str, list[float]], request: RequestRecord) -> None:
    if not request.is_served or request.first_token is None:
        return
    times["ttft"].append(1e3 * (request.first_token - request.arrival))
    times["e2e"].append(1e3 * (request.finished - request.arrival))
    per_token = request.time_per_token
    if per_token is not None:
        times["tpot"].append(1e3 * per_token)
