"""The record of one run of one engine on one workload, real or simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from paged_core.cache.kv_cache import KVCache
from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup
from paged_plugins.decision_count import DecisionCount
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.runs.time_histogram import BUCKETS
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.serving import REFUSED, Arrival, Refusal, deciding_sequence

_SERVED = frozenset({FinishReason.STOP.value, FinishReason.LENGTH.value})


MOST = 10**18
"""Largest seconds and counts in a record; a file with more is damaged."""
Finite = Annotated[float, Field(ge=-MOST, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request that ended. Times are seconds from the start of the run."""

    id: str
    arrival: Finite
    admitted: Finite | None
    """When it was first admitted; ``None``: it never was."""
    first_token: Finite | None
    finished: Finite
    num_prompt: Count
    num_cached: Count
    """Prompt tokens that the prefix cache served when it was first admitted."""
    num_output: Count
    """Tokens generated, over all of its sequences."""
    num_cut: Count = 0
    """Tokens that it asked for beyond them: the model's length or the cache ended it."""
    num_sequences: Annotated[int, Field(ge=1, le=MOST)] = 1
    """Sequences sampled for it."""
    num_preemptions: Count
    finish_reason: str
    tenant: str = ""
    session: str = ""
    priority: int = 0
    deadline: Finite | None = None
    """Seconds from the start of the run."""
    replica: Count = 0
    """Number of the replica of a cluster that it was sent to."""

    @property
    def is_served(self) -> bool:
        """Return whether it ended by a stop condition or by its length."""
        return self.finish_reason in _SERVED

    @property
    def is_whole(self) -> bool:
        """Return whether it was served with all that it asked for."""
        return self.is_served and not self.num_cut

    @property
    def is_refused(self) -> bool:
        """Return whether the admission refused it, or one that it follows."""
        return self.finish_reason == REFUSED

    @property
    def is_failed(self) -> bool:
        """Return whether it ended with an error."""
        return self.finish_reason == FinishReason.ERROR.value

    @property
    def needed_tokens(self) -> int:
        """Tokens that had to be computed for it, had it not been preempted."""
        if not self.num_output:
            return 0
        return self.num_prompt - self.num_cached + self.num_output - self.num_sequences

    @property
    def time_per_token(self) -> float | None:
        """Seconds per output token of a sequence after its first; ``None``: it has one at most."""
        later = self.num_output / self.num_sequences - 1
        if self.first_token is None or later <= 0:
            return None
        return (self.finished - self.first_token) / later


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """One step, or the last of several that were thinned out. Counts are of this step alone."""

    time: Finite
    """When it began, in seconds from the start of the run."""
    seconds: Finite
    num_running: Count
    """Requests that were in the batch or held blocks after it."""
    num_waiting: Count
    num_swapped: Count
    prefill_tokens: Count
    decode_tokens: Count
    num_blocks: Count
    """Blocks of the cache."""
    block_size: Count = 0
    """Slots of a block; 0: unknown."""
    free_blocks: Count
    """Blocks that could be allocated: cached ones that no sequence holds are among them."""
    cached_blocks: Count = 0
    """Blocks among them with content that can be found."""
    held_tokens: Count
    """Slots of held blocks that hold the state of a token that was computed."""
    reserved_tokens: Count
    """Slots of held blocks that hold none, but will: the room up to the final length of their
    sequence."""


@dataclass(slots=True, kw_only=True)
class RunTotals:
    """Sums over all steps of a run."""

    num_steps: Count = 0
    extrapolated_steps: Count = 0
    """Steps whose time lies beyond what the cost model was made from."""
    busy_seconds: Finite = 0.0
    """In steps; the rest of the run was idle."""
    elapsed: Finite = 0.0
    """Seconds from the first arrival to the end of the last request."""
    scheduled_tokens: Count = 0
    """Tokens computed."""
    recomputed_tokens: Count = 0
    """Tokens that had been computed before, and were lost by a preemption."""
    num_preemptions: Count = 0
    num_evictions: Count = 0
    """Cached blocks whose content was given up to make room."""
    peak_blocks: Count = 0
    """Most blocks that requests of one engine held in a step; idle ones that are cached could be
    given up, and are not among them."""
    peak_memory: Count = 0
    """Bytes that the process of an engine held at most; 0: not known."""
    swapped_blocks: Count = 0
    """Out and in together."""
    copied_blocks: Count = 0
    held_share: Finite = 0.0
    """Share of the cache's slots that hold the state of a token, averaged over busy time."""
    reserved_share: Finite = 0.0
    """Likewise: allocated slots that will hold one later."""
    internal_share: Finite = 0.0
    """Likewise: allocated slots that never will (internal fragmentation)."""
    external_share: Finite = 0.0
    """Likewise: free slots that the request which waits longest cannot use (external
    fragmentation); 0 where any free block serves."""

    def count(self, work: StepWork) -> None:
        """Add what a step computed and moved."""
        self.num_steps += 1
        self.scheduled_tokens += work.prefill_tokens + work.decode_sequences
        self.copied_blocks += work.copied_blocks
        self.swapped_blocks += work.swapped_blocks

    def look(self, kv_cache: KVCache) -> None:
        """Look at the blocks in use, before a step gives back those of requests that it ends."""
        held = kv_cache.num_blocks - kv_cache.num_free
        if held > self.peak_blocks:
            self.peak_blocks = held


@dataclass(slots=True, kw_only=True)
class ReplicaTotals:
    """Sums over the run of one replica."""

    num_requests: int = 0
    """Requests that ended on it, failed ones included."""
    num_generated: int = 0
    """Tokens."""
    num_prompt: int = 0
    """Tokens of the prompts of requests that it served."""
    num_cached: int = 0
    """Tokens of them that its prefix cache served when the request was first admitted."""
    num_steps: int = 0
    busy_seconds: float = 0.0
    """In steps; the rest of the run was idle."""


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """All that is kept of a run."""

    requests: list[RequestRecord] = field(default_factory=list)
    """In the order in which they ended."""
    steps: list[StepSample] = field(default_factory=list)
    """In order; thinned out evenly once they are too many for a picture."""
    totals: RunTotals = field(default_factory=RunTotals)
    failure: str | None = None
    """Message to the first request that was refused or ignored."""
    error: str | None = None
    """Message to the first request that ended with an error."""
    token_gaps: dict[Annotated[int, Field(ge=-BUCKETS, le=BUCKETS)], Count] = field(
        default_factory=dict
    )
    """Times between tokens of a sequence: how many fell into each bucket, see
    :mod:`paged_plugins.lab.runs.time_histogram`."""
    replicas: list[ReplicaTotals] = field(default_factory=list)
    """Replicas of a cluster, without ``steps`` and shares of memory; none: one engine alone."""
    asked: dict[str, DecisionCount] = field(default_factory=dict)
    """Decisions by slot, of those that were watched."""

    def tell(self, is_error: bool, told: str | None) -> None:
        """Keep what a request was told that was not served, if it is the first."""
        if is_error:
            self.error = self.error or told
        else:
            self.failure = self.failure or told

    @property
    def first_told(self) -> str | None:
        """Message to a request that was not served; ``None``: all were."""
        return self.error or self.failure

    @property
    def num_errors(self) -> int:
        """Requests that ended with an error."""
        return sum(each.is_failed for each in self.requests)


def ended_record(group: SequenceGroup, arrival: Arrival, start: float) -> RequestRecord:
    """Return what is kept of a request that ended; ``group`` is as it stands after that."""
    num_prompt, finish_reason = len(group.request.prompt), deciding_sequence(group).finish_reason
    num_output = sum(len(each.tokens) - num_prompt for each in group.sequences)
    num_asked = arrival.request.n * arrival.request.output
    assert group.finished_at is not None
    assert finish_reason is not None
    return RequestRecord(
        **_asked(arrival.request, arrival),
        admitted=None if group.admitted_at is None else group.admitted_at - start,
        first_token=None if group.first_token_at is None else group.first_token_at - start,
        finished=group.finished_at - start,
        num_prompt=num_prompt,
        num_cached=group.num_cached or 0,
        num_output=num_output,
        num_cut=max(0, num_asked - num_output) if finish_reason is FinishReason.LENGTH else 0,
        num_sequences=len(group.sequences),
        num_preemptions=group.num_preemptions,
        finish_reason=finish_reason.value,
    )


def refused_records(arrival: Arrival, now: float, refusal: Refusal) -> Iterator[RequestRecord]:
    """Yield what is kept of a request that an engine did not take on, and of those that follow it,
    which never arrive.

    All of them count as ended at once: every arm of a study has the same requests.
    """
    for request in arrival.request.family():
        has_own = not refusal.is_error or request is arrival.request
        yield RequestRecord(
            **_asked(request, arrival),
            admitted=None,
            first_token=None,
            finished=now,
            num_prompt=len(arrival.prompt),
            num_cached=0,
            num_output=0,
            num_sequences=request.n,
            num_preemptions=0,
            finish_reason=refusal.end if has_own else FinishReason.IGNORED.value,
        )


def _asked(request: WorkloadRequest, arrival: Arrival) -> dict[str, Any]:
    return {
        "id": request.id,
        "arrival": arrival.at,
        "tenant": request.tenant,
        "session": request.session,
        "priority": request.priority,
        "deadline": None if request.deadline is None else arrival.at + request.deadline,
    }
