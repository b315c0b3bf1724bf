"""What a scheduler planned, checked before it is computed."""

from __future__ import annotations

from array import array

from paged_core.errors import PluginError
from paged_core.ids import SeqId
from paged_core.interfaces.schedule import Schedule
from paged_core.sequence import SequenceState


def count_scheduled(plan: Schedule, step: int) -> set[SeqId]:
    """Count the tokens of a plan as scheduled in a step; return the sequences with more pending.

    Raises:
        PluginError: it plans what cannot be computed; some of its tokens are counted.
    """
    incomplete: set[SeqId] = set()
    if 0 in array("q", plan.num_tokens):  # which raises if one is no integer
        raise PluginError("schedule() planned 0 tokens of a sequence")
    for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
        end = sequence.num_scheduled + num_tokens
        if end != len(sequence.tokens) + sequence.num_unknown or end > sequence.capacity:
            _check_chunk(sequence, num_tokens)
            incomplete.add(sequence.id)
        sequence.num_scheduled = end
        sequence.last_step = step
    if incomplete and len({sequence.id for sequence in plan.sequences}) < len(plan.sequences):
        raise PluginError("schedule() planned one sequence twice")
    return incomplete


def _check_chunk(sequence: SequenceState, num_tokens: int) -> None:
    room = sequence.capacity - sequence.num_scheduled
    if not 0 < num_tokens <= min(sequence.num_pending, room):
        raise PluginError(
            f"schedule() planned {num_tokens} tokens of {sequence}, which has "
            f"{sequence.num_pending} pending and blocks for {room}"
        )
