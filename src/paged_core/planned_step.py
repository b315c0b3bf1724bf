"""A planned step, as the executor and the observers are told of it."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.cache_changes import CacheChanges
from paged_core.interfaces.observer import StepRecord
from paged_core.interfaces.scheduler import Queues, Schedule
from paged_core.requests.beam_search import num_candidates
from paged_core.sequence import SequenceGroup, SequenceState
from paged_core.step import NewSequence, StepInput


def step_input(number: int, plan: Schedule, changes: CacheChanges) -> StepInput:
    """What the executor is to do."""
    return StepInput(
        number=number,
        sequence_ids=[sequence.id for sequence in plan.sequences],
        num_tokens=plan.num_tokens,
        added=[_introduce(sequence) for sequence in changes.added.values()],
        removed=changes.removed,
        edit_ids=changes.edit_ids,
        edit_indices=changes.edit_indices,
        edit_blocks=changes.edit_blocks,
        copy_sources=list(changes.copies.values()),
        copy_targets=list(changes.copies),
        swap_out_sources=[source for source, _ in changes.swap_out],
        swap_out_targets=[target for _, target in changes.swap_out],
        swap_in_sources=list(changes.swap_in.values()),
        swap_in_targets=list(changes.swap_in),
    )


def _introduce(sequence: SequenceState) -> NewSequence:
    """What an executor must know of a sequence that is new to it."""
    group = sequence.group
    sampling = group.request.sampling
    searches = sampling.beam_width is not None
    return NewSequence(
        id=sequence.id,
        request_id=group.id,
        tokens=list(sequence.tokens),
        num_prompt_tokens=len(group.request.prompt),
        num_computed=sequence.num_scheduled,
        blocks=list(sequence.table.blocks),
        sampling=sampling,
        index=sequence.index,
        fan_out=1 if group.forked or searches else sampling.width,
        num_candidates=max(num_candidates(group), sampling.logprobs or 0) if searches else 0,
    )


def step_record(
    number: int,
    now: float,
    plan: Schedule,
    *,
    finished: Sequence[SequenceGroup],
    queues: Queues,
    free_blocks: int,
    seconds: dict[str, float],
) -> StepRecord:
    """What observers are told of it once it is over."""
    scheduled: dict[str, int] = {}
    for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
        name = sequence.group.id
        scheduled[name] = scheduled.get(name, 0) + num_tokens
    return StepRecord(
        number=number,
        now=now,
        scheduled=scheduled,
        cached={group.id: cached for group, cached in plan.admitted},
        preempted=[group.id for group in plan.preempted],
        swapped_out=[group.id for group in plan.swapped_out],
        swapped_in=[group.id for group in plan.swapped_in],
        ignored=[group.id for group, _ in plan.ignored],
        finished=[group.id for group in finished],
        queues=queues,
        free_blocks=free_blocks,
        seconds=seconds,
    )
