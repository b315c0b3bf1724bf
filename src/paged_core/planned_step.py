"""A step between its plan and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paged_core.cache_changes import CacheChanges
from paged_core.ids import SeqId
from paged_core.interfaces.scheduler import Schedule
from paged_core.sequence import SequenceGroup, SequenceState
from paged_core.step import NewSequence, StepInput


@dataclass(slots=True, eq=False)
class PlannedStep:
    """What is kept of a step until its result is applied; the next one may be planned meanwhile."""

    number: int
    now: float
    """Seconds on the engine's clock when it was planned."""
    plan: Schedule
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent on it, by phase."""
    changes: CacheChanges = field(default_factory=CacheChanges)
    """What was done to block tables for it."""
    ends: list[int] | None = None
    """Beside ``plan.sequences``: how many tokens of each are computed after it. ``None``: as many
    as are scheduled, since no other step is planned before its result is applied."""
    handle: Any = None
    """What the executor returned for it."""
    sequence_ids: list[SeqId] = field(default_factory=list)
    """Those of the batch, in order."""
    num_tokens: list[int] = field(default_factory=list)
    """Beside it: how many tokens the executor computes."""
    incomplete: set[SeqId] = field(default_factory=set)
    """Sequences of which tokens are pending after it: these draw none."""
    finished: list[SequenceGroup] = field(default_factory=list)
    """Requests that ended when its result was applied."""

    def input(self, *, recompute: bool = False) -> StepInput:
        """Return what the executor is to do.

        Args:
            recompute: from the first token of each sequence; all of them are among those added.
        """
        plan, changes = self.plan, self.changes
        self.sequence_ids = [sequence.id for sequence in plan.sequences]
        self.num_tokens = plan.num_tokens
        if recompute:
            planned = zip(plan.sequences, plan.num_tokens, strict=True)
            self.num_tokens = [sequence.num_scheduled + count for sequence, count in planned]
        return StepInput(
            number=self.number,
            sequence_ids=self.sequence_ids,
            num_tokens=self.num_tokens,
            added=[_new_sequence(sequence, recompute) for sequence in changes.added.values()],
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

    def groups(self) -> list[SequenceGroup]:
        """Return the requests that it computes or moves, each once."""
        sequences = [*self.plan.sequences, *self.changes.added.values()]
        groups = dict.fromkeys(sequence.group for sequence in sequences)
        groups.update((group, None) for group in self.plan.swapped_out if group.live)
        return list(groups)


def _new_sequence(sequence: SequenceState, recompute: bool) -> NewSequence:
    """What an executor must know of a sequence that is new to it."""
    group = sequence.group
    sampling = group.request.sampling
    searches = sampling.beam_width is not None
    return NewSequence(
        id=sequence.id,
        request_id=group.id,
        tokens=list(sequence.tokens),
        num_prompt_tokens=len(group.request.prompt),
        num_computed=0 if recompute else sequence.num_scheduled,
        blocks=list(sequence.table.blocks),
        sampling=sampling,
        index=sequence.index,
        fan_out=1 if group.forked or searches else sampling.width,
        num_candidates=max(group.num_candidates, sampling.logprobs or 0) if searches else 0,
    )
