"""Counts what happens in a cluster, as it happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceGroup
from paged_plugins.lab.cluster.record import ClusterRecord, ReplicaTotals
from paged_plugins.lab.cluster.replica import Replica
from paged_plugins.lab.cluster.timeline import Timeline
from paged_plugins.lab.measures import meets, time_per_token
from paged_plugins.lab.results import ServiceLevel
from paged_plugins.lab.run_record import RequestRecord
from paged_plugins.workloads.request import WorkloadRequest

OnRequest = Callable[[RequestRecord, int], None]
"""Called with each request that ended, and the number of its replica."""

_SERVED = frozenset({FinishReason.STOP.value, FinishReason.LENGTH.value})


class Watch:
    """Adds up a :class:`ClusterRecord`; keeps no request that has ended.

    Args:
        slo: what a request must meet to count as good.
    """

    def __init__(
        self, num_replicas: int, slo: ServiceLevel, on_request: OnRequest, max_samples: int
    ) -> None:
        self.record = ClusterRecord(replicas=[ReplicaTotals() for _ in range(num_replicas)])
        self._slo = slo
        self._on_request = on_request
        self._timeline = Timeline(max_samples)
        self._first_arrival: float | None = None
        self._last_end = 0.0

    def arrived(self, request: Request) -> None:
        """A request arrived; they do so in the order of their time."""
        if self._first_arrival is None:
            self._first_arrival = request.arrival

    def ended(self, group: SequenceGroup, source: WorkloadRequest, replica: int) -> None:
        """A request ended on a replica."""
        self._add(_request_record(group, source), replica)
        error = group.sequences[0].error
        if error and self.record.failure is None:
            self.record.failure = error

    def refused(self, request: Request, source: WorkloadRequest, replica: int, why: str) -> None:
        """A request was refused by a replica when it arrived."""
        self._add(_refused_record(request, source), replica)
        if self.record.failure is None:
            self.record.failure = why

    def passed(self, now: float, replicas: Sequence[Replica]) -> None:
        """All that happens at the time ``now`` has happened."""
        self._timeline.pass_to(now, replicas)

    def finish(self, replicas: Sequence[Replica]) -> ClusterRecord:
        """The run has ended: return its record."""
        record = self.record
        record.elapsed = self._last_end - (self._first_arrival or 0.0)
        record.timeline = self._timeline.samples
        for totals, replica in zip(record.replicas, replicas, strict=True):
            totals.num_steps, totals.busy_seconds = replica.num_steps, replica.busy_seconds
            totals.num_generated = replica.num_generated
        return record

    def _add(self, request: RequestRecord, replica: int) -> None:
        record, totals = self.record, self.record.replicas[replica]
        self._last_end = max(self._last_end, request.finished)
        self._on_request(request, replica)
        record.num_preemptions += request.num_preemptions
        totals.num_requests += 1
        totals.num_prompt += request.num_prompt
        totals.num_cached += request.num_cached
        if request.finish_reason not in _SERVED:
            record.num_failed += 1
            return
        record.num_served += 1
        record.num_good += meets(request, self._slo)
        self._add_latencies(request)

    def _add_latencies(self, request: RequestRecord) -> None:
        latencies, arrival = self.record.latencies, request.arrival
        latencies["e2e"].add(request.finished - arrival)
        if request.admitted is not None:
            latencies["queueing"].add(request.admitted - arrival)
        if request.first_token is not None:
            latencies["ttft"].add(request.first_token - arrival)
        per_token = time_per_token(request)
        if per_token is not None:
            latencies["tpot"].add(per_token)


def _request_record(group: SequenceGroup, source: WorkloadRequest) -> RequestRecord:
    request, first = group.request, group.sequences[0]
    assert group.finished_at is not None
    assert first.finish_reason is not None
    return RequestRecord(
        id=group.id,
        arrival=request.arrival,
        admitted=group.admitted_at,
        first_token=group.first_token_at,
        finished=group.finished_at,
        num_prompt=len(request.prompt),
        num_cached=group.num_cached or 0,
        num_output=sum(len(sequence.tokens) - len(request.prompt) for sequence in group.sequences),
        num_preemptions=group.num_preemptions,
        finish_reason=first.finish_reason.value,
        tenant=source.tenant,
        session=source.session,
        priority=source.priority,
        deadline=request.deadline,
    )


def _refused_record(request: Request, source: WorkloadRequest) -> RequestRecord:
    return RequestRecord(
        id=request.id,
        arrival=request.arrival,
        admitted=None,
        first_token=None,
        finished=request.arrival,
        num_prompt=len(request.prompt),
        num_cached=0,
        num_output=0,
        num_preemptions=0,
        finish_reason=FinishReason.IGNORED.value,
        tenant=source.tenant,
        session=source.session,
        priority=source.priority,
        deadline=request.deadline,
    )
