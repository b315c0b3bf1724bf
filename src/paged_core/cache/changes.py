"""Changes of block tables since the last step, on their way to the executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paged_core.ids import BlockId, SeqId
from paged_core.sequence import SequenceState


@dataclass(slots=True)
class CacheChanges:
    """Changes since the last step, with the names of :class:`~paged_core.step.StepInput`."""

    added: dict[SeqId, SequenceState] = field(default_factory=dict)
    removed: list[SeqId] = field(default_factory=list)
    edit_ids: list[SeqId] = field(default_factory=list)
    edit_indices: list[int] = field(default_factory=list)
    edit_blocks: list[BlockId] = field(default_factory=list)
    copies: dict[BlockId, BlockId] = field(default_factory=dict)
    """Target to source."""
    swap_out: list[tuple[BlockId, BlockId]] = field(default_factory=list)
    """Device source, host target."""
    swap_in: dict[BlockId, BlockId] = field(default_factory=dict)
    """Device target to host source."""
    cached: list[BlockId] = field(default_factory=list)
    """Blocks that were cached while the step was planned."""
    evicted: Sequence[BlockId] = ()
    """Blocks that were given new content, and held cached content until then."""
    hits: dict[SeqId, Sequence[BlockId]] = field(default_factory=dict)
    """Cached blocks that sequences which were admitted share; those that share none are left
    out."""

    def edit(self, sequence: SequenceState, index: int, block: BlockId) -> None:
        """An entry of a block table changed; a sequence that is sent whole needs no edit."""
        if sequence.id not in self.added:
            self.edit_ids.append(sequence.id)
            self.edit_indices.append(index)
            self.edit_blocks.append(block)

    def remove(self, sequence: SequenceState) -> None:
        """A sequence gave its blocks back; the executor forgets it, if it was told of it at all."""
        if self.added.pop(sequence.id, None) is not None:
            self.hits.pop(sequence.id, None)
            return
        self.removed.append(sequence.id)
        self._drop_edits(sequence)

    def send_again(self, sequence: SequenceState) -> None:
        """The executor's copy of a sequence is out of date: another one takes its place."""
        if sequence.id not in self.added:
            self.removed.append(sequence.id)
            self._drop_edits(sequence)
            self.added[sequence.id] = sequence

    def _drop_edits(self, sequence: SequenceState) -> None:
        if sequence.id in self.edit_ids:
            kept = [i for i, known in enumerate(self.edit_ids) if known != sequence.id]
            self.edit_ids = [self.edit_ids[i] for i in kept]
            self.edit_indices = [self.edit_indices[i] for i in kept]
            self.edit_blocks = [self.edit_blocks[i] for i in kept]
