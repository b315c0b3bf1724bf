"""The decisions of a scheduler for one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from paged_core.sequence import SequenceGroup, SequenceState


@dataclass(slots=True)
class Schedule:
    """One step. Its blocks are reserved already.

    A scheduler fills in the batch, ``admitted`` and nothing else: the
    :class:`~paged_core.engine.preemptor.Preemptor` enters what it does to whole groups.
    """

    sequences: list[SequenceState] = field(default_factory=list)
    """The batch, in order."""
    num_tokens: list[int] = field(default_factory=list)
    """Beside it: how many tokens of each sequence to compute; at least 1."""
    admitted: list[tuple[SequenceGroup, int]] = field(default_factory=list)
    """Groups that left the waiting queue, and how many tokens the prefix cache served."""
    preempted: list[SequenceGroup] = field(default_factory=list)
    """Groups that lost their blocks, in the order in which they were chosen."""
    swapped_out: list[SequenceGroup] = field(default_factory=list)
    swapped_in: list[SequenceGroup] = field(default_factory=list)
    ignored: list[tuple[SequenceGroup, str]] = field(default_factory=list)
    """Groups that can never run (again), no longer held by the scheduler, and why."""

    def add(self, sequence: SequenceState, num_tokens: int) -> None:
        """Add a sequence to the batch; blocks for its next ``num_tokens`` tokens are reserved."""
        self.sequences.append(sequence)
        self.num_tokens.append(num_tokens)

    def withdraw(self, group: SequenceGroup) -> None:
        """Take the sequences of ``group`` out of the batch."""
        kept = [i for i, sequence in enumerate(self.sequences) if sequence.group is not group]
        if len(kept) < len(self.sequences):
            self.sequences[:] = [self.sequences[i] for i in kept]
            self.num_tokens[:] = [self.num_tokens[i] for i in kept]

    def leave_out_finished(self) -> None:
        """Take sequences that are no longer live since they were planned out of the batch."""
        pairs = zip(self.sequences, self.num_tokens, strict=True)
        kept = [(each, count) for each, count in pairs if each in each.group.live]
        self.sequences[:] = [sequence for sequence, _ in kept]
        self.num_tokens[:] = [count for _, count in kept]
