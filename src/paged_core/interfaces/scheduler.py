"""Slot ``scheduler``: which sequences run in the next step, and over how many tokens each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paged_core.interfaces.preemption import Preemption
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.interfaces.victim import Victim
from paged_core.sequence import SequenceGroup, SequenceState

if TYPE_CHECKING:
    from paged_core.kv_cache import KVCache


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerParts:
    """What the factory of a scheduler gets beside its options."""

    kv_cache: KVCache
    queue_order: QueueOrder
    victim: Victim
    preemption: Preemption
    max_model_len: int


@dataclass(slots=True)
class Schedule:
    """What a scheduler decided for one step. Blocks are reserved already."""

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

    def leave_out_finished(self) -> None:
        """Take sequences that are no longer live since they were planned out of the batch."""
        pairs = zip(self.sequences, self.num_tokens, strict=True)
        kept = [(each, count) for each, count in pairs if each in each.group.live]
        self.sequences[:] = [sequence for sequence, _ in kept]
        self.num_tokens[:] = [count for _, count in kept]


@dataclass(frozen=True, slots=True)
class Queues:
    """Who stands where, in queue order."""

    running: Sequence[SequenceGroup]
    waiting: Sequence[SequenceGroup]
    swapped: Sequence[SequenceGroup] = ()


class Scheduler(ABC):
    """Decides; it touches blocks only through the :class:`~paged_core.kv_cache.KVCache`.

    The engine advances ``num_scheduled``, appends tokens and releases blocks of what has finished.
    So that runs can be repeated, decisions follow from the calls and ``now`` alone.
    """

    @abstractmethod
    def add(self, group: SequenceGroup, /) -> None:
        """A request arrived."""

    def refuse(self, group: SequenceGroup, /) -> str | None:
        """Say why ``group``, not yet added, could never run whatever else does, or return ``None``.

        Room in the cache and the model's length are the engine's concern.
        """
        return None

    @abstractmethod
    def remove(self, group: SequenceGroup, /) -> None:
        """A group finished or was aborted, wherever it stands; its blocks are not your concern."""

    @abstractmethod
    def schedule(self, now: float, /) -> Schedule:
        """Plan the next step at ``now`` seconds on the engine's clock."""

    @abstractmethod
    def queues(self) -> Queues:
        """Who stands where; for observers, off the hot path."""

    @abstractmethod
    def __len__(self) -> int:
        """Groups held, in whatever state."""

    @property
    def max_num_seqs(self) -> int | None:
        """Sequences that may run at once, hence the most that one request may ask for."""
        return None

    @property
    @abstractmethod
    def length_cap(self) -> int:
        """A sequence of this many tokens ends with ``length``."""
