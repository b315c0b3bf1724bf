"""Slot ``queue_order``: the order of waiting groups and, reversed, of candidate victims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

from paged_core.sequence import SequenceGroup


class QueueOrder(ABC):
    """Orders groups by a key; equal keys keep the order of the queue."""

    stable: bool = True
    """True if a group's key stays the same while it waits: then the queue is a heap."""

    @abstractmethod
    def key(self, group: SequenceGroup, now: float, /) -> Any:
        """Return a comparable key; the smallest goes first. ``now`` is in seconds.

        It follows from the group, the time and what was served; asking changes nothing.
        ``group.waiting_since`` says since when a group waits.
        """


@runtime_checkable
class SupportsService(Protocol):
    """An order that counts what each group was given."""

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        """``num_tokens`` of one of its sequences were scheduled in the step planned at ``now``."""

    def left(self, group: SequenceGroup, /) -> None:
        """The group has ended."""


@runtime_checkable
class SupportsQuantum(Protocol):
    """An order under which a running group may be preempted for one that comes before it."""

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        """Return whether the quantum of a running group is over: then it may be preempted.

        Asked for every running group in each step in which others wait, so it costs O(1). It
        follows from the group, the time and what was served; asking changes nothing.
        """
