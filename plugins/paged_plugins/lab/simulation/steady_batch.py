"""A batch that only decodes, from one step to the next."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.step import StepInput, StepResult
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.runs.work_count import CountedSequence


class SteadyBatch:
    """The steps that repeat one batch: each sequence computes one more token and draws the next.

    What such a step computes and draws follows from the step before, without a look at every
    sequence; most steps of a simulation are of this kind. The counts of the sequences stand still
    meanwhile: :meth:`settle` makes up for it.

    Args:
        sequences: of the batch, in order, each with all of its tokens computed.
        drew: the step before drew these tokens, one for each sequence, and nothing else.
    """

    def __init__(self, sequences: Sequence[CountedSequence], drew: StepResult) -> None:
        self._sequences = sequences
        self._ids, self._tokens = drew.sequence_ids, drew.token_ids
        self._ones = [1] * len(sequences)
        self._context = sum(sequence.num_computed for sequence in sequences)
        self._num_steps = 0

    def repeats(self, step: StepInput) -> bool:
        """Whether ``step`` is another one of this batch."""
        return (
            step.sequence_ids == self._ids
            and step.num_tokens == self._ones
            and not step.added
            and not step.removed
        )

    def next(self, step: StepInput) -> tuple[StepWork, StepResult]:
        """Return the work in a step that repeats the batch, and what it draws."""
        count = len(self._ones)
        work = StepWork(
            decode_sequences=count,
            decode_context=self._context,
            sampled_rows=count,
            copied_blocks=len(step.copy_sources),
            swapped_blocks=len(step.swap_out_sources) + len(step.swap_in_sources),
        )
        self._num_steps += 1
        self._context += count
        self._tokens = [token + 1 for token in self._tokens]
        return work, StepResult(sequence_ids=self._ids, token_ids=self._tokens)

    def settle(self) -> None:
        """Count what the repeated steps computed; the batch repeats no longer."""
        for sequence in self._sequences:
            sequence.num_computed += self._num_steps
            sequence.num_tokens += self._num_steps
