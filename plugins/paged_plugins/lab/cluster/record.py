"""The record of a run of a cluster, and what fills it: its size does not depend on the requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paged_plugins.lab.measures import (
    ServiceLevel,
    balance,
    meets,
    percentiles,
    rates,
    work_done,
)
from paged_plugins.lab.runs.run_record import (
    ReplicaTotals,
    RequestRecord,
    RunTotals,
    refused_records,
)
from paged_plugins.lab.runs.time_histogram import bucket
from paged_plugins.workloads.serving import Arrival, Refusal


@dataclass(slots=True)
class Latency:
    """A histogram of times with their number and sum; percentiles are within 0.5%."""

    counts: dict[int, int] = field(default_factory=dict)
    """Number of times in each bucket, see :mod:`paged_plugins.lab.runs.time_histogram`."""
    num: int = 0
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Add a time."""
        number = bucket(seconds)
        self.counts[number] = self.counts.get(number, 0) + 1
        self.num += 1
        self.total += seconds

    def measures(self, kind: str) -> dict[str, float]:
        """Return mean and percentiles in milliseconds, by name; none if there are no times."""
        mean = {f"{kind}_ms_mean": 1e3 * self.total / self.num} if self.num else {}
        return mean | percentiles(kind, self.counts)


@dataclass(slots=True, kw_only=True)
class ClusterRecord(RunTotals):
    """Sums over all replicas, and histograms of a run; it looks at no memory."""

    replicas: list[ReplicaTotals]
    num_served: int = 0
    """Requests that ended by a stop condition or by their length."""
    num_failed: int = 0
    """Requests that were refused, ignored, or ended by an error; latencies are without them."""
    failure: str | None = None
    """Message to the first request that was refused or ignored."""
    num_errors: int = 0
    """Number of the failed requests that ended with an error."""
    error: str | None = None
    """Message to the first of these."""
    num_good: int | None = None
    """Requests that met the service level; ``None``: it has no limits."""
    token_gaps: dict[int, int] = field(default_factory=dict)
    """Times between tokens of a sequence, by bucket, see
    :mod:`paged_plugins.lab.runs.time_histogram`."""
    latencies: dict[str, Latency] = field(
        default_factory=lambda: {kind: Latency() for kind in ("ttft", "tpot", "e2e", "queueing")}
    )

    def measures(self) -> dict[str, float]:
        """Return what the run is judged by, under the names that runs of one engine have too."""
        replicas = self.replicas
        num_generated = sum(each.num_generated for each in replicas)
        found = rates(self, num_generated, self.num_served, self.num_good)
        num_prompt = sum(each.num_prompt for each in replicas)
        if num_prompt:
            found["hit_rate"] = sum(each.num_cached for each in replicas) / num_prompt
        for kind, latency in self.latencies.items():
            found |= latency.measures(kind)
        found |= percentiles("itl", self.token_gaps)
        found |= work_done(self, len(replicas))
        found["failed"] = float(self.num_failed)
        return found | balance(replicas)


_SUMMED = ("num_steps", "busy_seconds", "scheduled_tokens", "num_preemptions", "num_evictions")
OnRequest = Callable[[RequestRecord, int], None]
"""Called with each request that ended, and the number of its replica."""


class Watch:
    """Adds up a :class:`ClusterRecord`; keeps no request that has ended.

    Args:
        slo: what a request must meet to count as good.
    """

    def __init__(self, num_replicas: int, slo: ServiceLevel, on_request: OnRequest) -> None:
        self.record = ClusterRecord(
            replicas=[ReplicaTotals() for _ in range(num_replicas)],
            num_good=0 if slo.limits else None,
        )
        """Complete once :meth:`finish` has returned it."""
        self._slo = slo
        self._on_request = on_request
        self._first_arrival: float | None = None
        self._last_end = 0.0
        self._needed_tokens = 0
        """Tokens needed by the requests that ended."""

    def arrived(self, arrival: Arrival) -> None:
        """A request arrived; they do so in the order of their time."""
        if self._first_arrival is None:
            self._first_arrival = arrival.at

    def ended(self, request: RequestRecord, replica: int, told: str | None) -> None:
        """A request ended on a replica; ``told``: why it was not served, if it was not."""
        self._last_end = request.finished
        self._add(request, replica)
        self._needed_tokens += request.needed_tokens
        self._tell(request.is_failed, told)

    def refused(self, arrival: Arrival, replica: int, refusal: Refusal) -> int:
        """A request was not taken on by a replica; return how many ended with it."""
        self._last_end = max(self._last_end, arrival.at)
        records = list(refused_records(arrival, arrival.at, refusal))
        for record in records:
            self._add(record, replica)
        self._tell(refusal.is_error, refusal.reason)
        return len(records)

    def _tell(self, is_error: bool, told: str | None) -> None:
        record = self.record
        if is_error:
            record.num_errors += 1
            record.error = record.error or told
        else:
            record.failure = record.failure or told

    def finish(self, replicas: Sequence[RunTotals], token_gaps: Mapping[int, int]) -> ClusterRecord:
        """The run has ended: return its record.

        Args:
            replicas: what the engine of each did.
            token_gaps: times between tokens, by bucket.
        """
        record = self.record
        record.elapsed = self._last_end - (self._first_arrival or 0.0)
        record.token_gaps = dict(sorted(token_gaps.items()))
        for totals, of_engine in zip(record.replicas, replicas, strict=True):
            totals.num_steps, totals.busy_seconds = of_engine.num_steps, of_engine.busy_seconds
        for name in _SUMMED:
            setattr(record, name, sum(getattr(each, name) for each in replicas))
        record.peak_blocks = max(each.peak_blocks for each in replicas)
        record.recomputed_tokens = max(0, record.scheduled_tokens - self._needed_tokens)
        return record

    def _add(self, request: RequestRecord, replica: int) -> None:
        record, totals = self.record, self.record.replicas[replica]
        self._on_request(request, replica)
        totals.num_requests += 1
        totals.num_generated += request.num_output
        totals.num_prompt += request.num_prompt
        totals.num_cached += request.num_cached
        if not request.is_served:
            record.num_failed += 1
            return
        record.num_served += 1
        if record.num_good is not None:
            record.num_good += meets(request, self._slo)
        latencies, arrival = record.latencies, request.arrival
        latencies["e2e"].add(request.finished - arrival)
        if request.admitted is not None:
            latencies["queueing"].add(request.admitted - arrival)
        if request.first_token is not None:
            latencies["ttft"].add(request.first_token - arrival)
        per_token = request.time_per_token
        if per_token is not None:
            latencies["tpot"].add(per_token)
