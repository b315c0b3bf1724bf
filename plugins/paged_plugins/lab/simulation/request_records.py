"""From a workload's requests to the engine's, and back to what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_plugins.lab.run_record import RequestRecord
from paged_plugins.lab.simulation.arrivals import Arrival

_TEMPERATURE = 20.0
"""Of requests for several sequences: so high that these differ whatever the model, as they do in a
simulation; equal ones would share blocks."""


def engine_request(arrival: Arrival, start: float) -> Request:
    """Return what the engine is to serve.

    Args:
        start: seconds on the engine's clock at which the run started.
    """
    asked = arrival.request
    return Request(
        id=asked.id,
        prompt=arrival.prompt,
        sampling=exact_sampling(asked.n, asked.output),
        priority=asked.priority,
        arrival=start + arrival.at,
        cache_salt=asked.cache_salt,
        tenant=asked.tenant,
        deadline=None if asked.deadline is None else start + arrival.at + asked.deadline,
    )


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
        )


@cache
def exact_sampling(n: int, output: int) -> SamplingParams:
    """Parameters under which ``n`` sequences generate ``output`` tokens each."""
    return SamplingParams(
        n=n,
        temperature=0.0 if n == 1 else _TEMPERATURE,
        max_tokens=output,
        ignore_eos=True,
        detokenize=False,
    )
