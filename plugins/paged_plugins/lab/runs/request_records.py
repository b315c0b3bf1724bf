"""What is kept of requests that ended, or were refused."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup
from paged_plugins.lab.runs.arrivals import Arrival
from paged_plugins.lab.runs.run_record import RequestRecord


def ended_record(group: SequenceGroup, arrival: Arrival, start: float) -> RequestRecord:
    """Return what is kept of a request that ended; ``group`` is as it stands after that."""
    request, first = group.request, group.sequences[0]
    assert group.finished_at is not None
    assert first.finish_reason is not None
    deadline = arrival.request.deadline
    return RequestRecord(
        id=request.id,
        arrival=arrival.at,
        admitted=None if group.admitted_at is None else group.admitted_at - start,
        first_token=None if group.first_token_at is None else group.first_token_at - start,
        finished=group.finished_at - start,
        num_prompt=len(request.prompt),
        num_cached=group.num_cached or 0,
        num_output=sum(len(each.tokens) - len(request.prompt) for each in group.sequences),
        num_sequences=len(group.sequences),
        num_preemptions=group.num_preemptions,
        finish_reason=first.finish_reason.value,
        tenant=request.tenant,
        session=arrival.request.session,
        priority=request.priority,
        deadline=None if deadline is None else arrival.at + deadline,
    )


def refused_records(arrival: Arrival, now: float) -> Iterator[RequestRecord]:
    """Yield what is kept of a request that an engine can never serve, and of those that follow it,
    which never arrive.

    All of them count as ended at once: every arm of a study has the same requests.
    """
    for request in arrival.request.family():
        yield RequestRecord(
            id=request.id,
            arrival=arrival.at,
            admitted=None,
            first_token=None,
            finished=now,
            num_prompt=len(arrival.prompt),
            num_cached=0,
            num_output=0,
            num_sequences=request.n,
            num_preemptions=0,
            finish_reason=FinishReason.IGNORED.value,
            tenant=request.tenant,
            session=request.session,
            priority=request.priority,
            deadline=None if request.deadline is None else arrival.at + request.deadline,
        )
