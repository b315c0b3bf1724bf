"""Slot ``preemption``: how a victim's work is kept, or how preemption is made unnecessary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

from paged_core.sequence import SequenceGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionParts:
    """What the factory of a preemption gets beside its options."""

    block_size: int


class PreemptionMode(StrEnum):
    """What becomes of a victim's keys and values."""

    RECOMPUTE = "recompute"
    """Dropped; its tokens are computed again when it is admitted again."""
    SWAP = "swap"
    """Moved to host memory and back."""


class Preemption(ABC):
    """Decides the mode for one group; a scheduler falls back to recompute if the host is full.

    Answers follow from the group alone, and asking changes nothing about it.
    """

    may_swap: bool = False
    """Whether :meth:`mode` ever answers ``SWAP``: then host blocks are set up by default."""

    @abstractmethod
    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        """Return how ``group`` gives way."""

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        """Tokens per sequence to set blocks aside for at admission; ``None``: only what it has.

        At least the tokens that are there, at most the block that ends ``group.max_length``.
        """
        return None
