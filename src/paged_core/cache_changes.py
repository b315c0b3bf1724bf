"""What was done to block tables since the last step, on its way to the executor."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from paged_core.ids import BlockId, SeqId
from paged_core.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class Merge:
    """A sequence's own block gave way to an equal one that this very step is to fill."""

    sequence: SequenceState
    index: int
    own: BlockId
    """Kept until the step is planned: the chunk that fills the other may yet be withdrawn."""


@dataclass(slots=True)
class CacheChanges:
    """What changed since the last step, in the words of :class:`~paged_core.step.StepInput`."""

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
    published: dict[SeqId, list[BlockId]] = field(default_factory=lambda: defaultdict(list))
    """Blocks that the prefix cache was promised in this step."""
    merges: list[Merge] = field(default_factory=list)
