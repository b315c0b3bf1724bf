"""Slot ``scheduler``: which sequences run in the next step, and over how many tokens each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from paged_core.interfaces.schedule import Schedule
from paged_core.sequence import SequenceGroup

__all__ = ["Queues", "Schedule", "Scheduler", "StepLimits", "SupportsStepLimits"]


@dataclass(frozen=True, slots=True)
class Queues:
    """The groups that a scheduler holds, each queue in order."""

    running: Sequence[SequenceGroup]
    waiting: Sequence[SequenceGroup]
    swapped: Sequence[SequenceGroup] = ()


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most that a step computes, for which executors provide memory; ``None``: unknown."""

    num_seqs: int | None = None
    num_tokens: int | None = None


@runtime_checkable
class SupportsStepLimits(Protocol):
    """Options of a scheduler that state its limits; an executor is started before the scheduler."""

    @property
    def step_limits(self) -> StepLimits:
        """The limits."""


class StepPlanner(Protocol):
    """Answers for a scheduler; a :class:`~paged_core.engine.planner.Planner` gives them."""

    num_seqs: int
    """Sequences that may run at once."""
    max_model_len: int

    def refuse(self, group: SequenceGroup) -> str | None:
        """Say why ``group`` could never run even alone, or return ``None``."""


class Scheduler(ABC):
    """Decides which sequences are computed, and how many tokens of each.

    A :class:`~paged_core.engine.planner.Planner` carries the decisions out. Without one, blocks are
    moved through the :class:`~paged_core.cache.kv_cache.KVCache`, and groups are preempted and
    resumed through the :class:`~paged_core.engine.preemptor.Preemptor`; both keep ``group.status``.

    The engine advances ``num_scheduled``, appends tokens and releases blocks of what has finished.
    So that runs can be repeated, decisions follow from the calls and ``now`` alone.
    """

    planner: StepPlanner | None = None
    """Planner of its steps, which also says what is refused, how many sequences may run and how
    long they may get, unless the scheduler does."""
    may_wait: float = 0.0
    """Seconds for which it may plan nothing although requests wait, before it counts as stuck."""

    @abstractmethod
    def add(self, group: SequenceGroup, /) -> None:
        """A request arrived."""

    def refuse(self, group: SequenceGroup, /) -> str | None:
        """Say why ``group``, not yet added, could never run even alone, or return ``None``.

        The size of the cache and the model's length are the engine's concern.
        """
        return None if self.planner is None else self.planner.refuse(group)

    @abstractmethod
    def remove(self, group: SequenceGroup, /) -> None:
        """A group finished or was aborted, in whichever queue; the engine releases its blocks."""

    @abstractmethod
    def schedule(self, now: float, /) -> Schedule:
        """Plan the next step at ``now`` seconds on the engine's clock.

        A running sequence whose ``num_pending`` is 0 waits for a step in flight: its group is left
        out of this one.
        """

    @abstractmethod
    def queues(self) -> Queues:
        """Return the queues; for observers, off the hot path."""

    def __len__(self) -> int:
        """Groups held, in whatever state."""
        queues = self.queues()
        return len(queues.running) + len(queues.waiting) + len(queues.swapped)

    @property
    def max_num_seqs(self) -> int | None:
        """Sequences that may run at once, hence the most that one request may ask for."""
        return None if self.planner is None else self.planner.num_seqs

    @property
    def length_cap(self) -> int:
        """A sequence of this many tokens ends with ``length``."""
        if self.planner is None:
            raise NotImplementedError("define length_cap, or set planner")
        return self.planner.max_model_len
