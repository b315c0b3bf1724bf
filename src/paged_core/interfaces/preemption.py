"""Slot ``preemption``: swap or recompute a victim, or reserve blocks so that there is none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

from paged_core.sequence import SequenceGroup


class PreemptionMode(StrEnum):
    """Fate of a victim's keys and values."""

    RECOMPUTE = "recompute"
    """Dropped; its tokens are computed again when it is admitted again."""
    SWAP = "swap"
    """Moved to host memory and back."""


class Preemption(ABC):
    """Decides for one group. The :class:`~paged_core.engine.preemptor.Preemptor` acts on the
    answers, and recomputes what it should swap if the host is full.

    Answers follow from the group alone, and asking changes nothing about it.
    """

    may_swap: bool = False
    """True if :meth:`mode` ever answers ``SWAP``: then host blocks are set up by default."""

    @abstractmethod
    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        """Return how ``group`` is preempted."""

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        """Tokens per sequence to reserve blocks for at admission; ``None``: no more than it has.

        At least the tokens that it has, at most the block that ends ``group.max_length``.
        """
        return None
