"""Counts what happens in a cluster, as it happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paged_plugins.lab.cluster.record import ClusterRecord, ReplicaTotals
from paged_plugins.lab.cluster.replica import ReplicaCounts
from paged_plugins.lab.cluster.timeline import Timeline
from paged_plugins.lab.measures.run_measures import meets
from paged_plugins.lab.measures.service_level import ServiceLevel
from paged_plugins.lab.router import ReplicaLoad
from paged_plugins.lab.runs.run_record import RequestRecord, refused_records
from paged_plugins.workloads.serving import Arrival

OnRequest = Callable[[RequestRecord, int], None]
"""Called with each request that ended, and the number of its replica."""


class Watch:
    """Adds up a :class:`ClusterRecord`; keeps no request that has ended.

    Args:
        slo: what a request must meet to count as good.
    """

    def __init__(
        self, num_replicas: int, slo: ServiceLevel, on_request: OnRequest, max_samples: int
    ) -> None:
        self.record = ClusterRecord(
            replicas=[ReplicaTotals() for _ in range(num_replicas)],
            num_good=0 if slo.has_limits else None,
        )
        """Complete once :meth:`finish` has returned it."""
        self._slo = slo
        self._on_request = on_request
        self._timeline = Timeline(max_samples)
        self._first_arrival: float | None = None
        self._last_end = 0.0
        self._needed_tokens = 0
        """Of the requests that ended."""

    def arrived(self, arrival: Arrival) -> None:
        """A request arrived; they do so in the order of their time."""
        if self._first_arrival is None:
            self._first_arrival = arrival.at

    def ended(self, request: RequestRecord, replica: int, error: str | None) -> None:
        """A request ended on a replica; ``error``: why it failed, if it did."""
        self._last_end = request.finished
        self._add(request, replica)
        self._needed_tokens += request.needed_tokens
        self._note_failure(error)

    def refused(self, arrival: Arrival, replica: int, reason: str) -> int:
        """A request was refused by a replica when it arrived; return how many ended with it."""
        self._last_end = max(self._last_end, arrival.at)
        records = list(refused_records(arrival, arrival.at))
        for record in records:
            self._add(record, replica)
        self._note_failure(reason)
        return len(records)

    def passed(self, now: float, loads: Sequence[ReplicaLoad]) -> None:
        """All that happens at the time ``now`` has happened."""
        self._timeline.pass_to(now, loads)

    def finish(
        self, replicas: Sequence[ReplicaCounts], token_gaps: Mapping[int, int]
    ) -> ClusterRecord:
        """The run has ended: return its record.

        Args:
            replicas: what the engine of each did.
            token_gaps: times between tokens, by bucket.
        """
        record = self.record
        record.elapsed = self._last_end - (self._first_arrival or 0.0)
        record.timeline = self._timeline.samples
        record.token_gaps = dict(sorted(token_gaps.items()))
        num_scheduled = sum(counts.num_scheduled for counts in replicas)
        record.recomputed_tokens = max(0, num_scheduled - self._needed_tokens)
        record.num_preemptions = sum(counts.num_preemptions for counts in replicas)
        record.num_evictions = sum(counts.num_evictions for counts in replicas)
        for totals, counts in zip(record.replicas, replicas, strict=True):
            totals.num_steps, totals.busy_seconds = counts.num_steps, counts.busy_seconds
            totals.num_generated = counts.num_generated
        return record

    def _note_failure(self, reason: str | None) -> None:
        if reason and self.record.failure is None:
            self.record.failure = reason

    def _add(self, request: RequestRecord, replica: int) -> None:
        record, totals = self.record, self.record.replicas[replica]
        self._on_request(request, replica)
        totals.num_requests += 1
        totals.num_prompt += request.num_prompt
        totals.num_cached += request.num_cached
        if not request.is_served:
            record.num_failed += 1
            return
        record.num_served += 1
        if record.num_good is not None:
            record.num_good += meets(request, self._slo)
        self._add_latencies(request)

    def _add_latencies(self, request: RequestRecord) -> None:
        latencies, arrival = self.record.latencies, request.arrival
        latencies["e2e"].add(request.finished - arrival)
        if request.admitted is not None:
            latencies["queueing"].add(request.admitted - arrival)
        if request.first_token is not None:
            latencies["ttft"].add(request.first_token - arrival)
        per_token = request.time_per_token
        if per_token is not None:
            latencies["tpot"].add(per_token)
