"""Slot ``victim``: which running group is preempted when blocks run out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from paged_core.sequence import SequenceGroup


class Victim(ABC):
    """Chooses among running groups; the scheduler says which are eligible, and in which order.

    It changes nothing about them. So that runs can be repeated, the choice follows from the
    arguments, the cache, earlier calls, and a seed if it is random.
    """

    @abstractmethod
    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        """Return one of ``candidates`` (never empty), which are ranked worst last."""
