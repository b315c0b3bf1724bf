"""Slot ``block_allocator``: which blocks are free, and how many sequences share the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from paged_core.ids import BlockId, BlockKey


class BlockAllocator(ABC):
    """Allocates the blocks ``0 .. num_blocks - 1``, in O(log n) per block or less."""

    @property
    @abstractmethod
    def num_free(self) -> int:
        """Blocks that could be allocated now: they are not referenced."""

    @abstractmethod
    def allocate(self, count: int, /) -> list[BlockId]:
        """Take ``count`` blocks, each referenced once.

        Raises:
            OutOfBlocks: fewer are free; nothing was taken.
        """

    @abstractmethod
    def share(self, blocks: Iterable[BlockId], /) -> None:
        """Reference each block once more; one that is free but cached leaves the free blocks."""

    @abstractmethod
    def free(self, blocks: Iterable[BlockId], /) -> None:
        """Drop one reference to each block, in this order: a sequence frees its last one first."""

    @abstractmethod
    def ref_count(self, block: BlockId, /) -> int:
        """Number of references to the block; 0: it is free."""


@runtime_checkable
class SupportsPrefixCache(Protocol):
    """An allocator that finds blocks by their content."""

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        """Return a block for each leading key, up to the first miss; nothing is referenced."""

    def cache(self, block: BlockId, key: BlockKey, /) -> BlockId:
        """Make the caller's block findable, and return the one it holds from now on.

        That is the same block, or, where the allocator merges duplicates, an equal one that was
        cached before: the caller's reference has moved to it.
        """

    def uncache(self, blocks: Iterable[BlockId], /) -> None:
        """Make these blocks unfindable: their cached content was never computed."""


@runtime_checkable
class SupportsLastStep(Protocol):
    """An allocator that tells its evictor when blocks were used last."""

    def release(self, blocks: Iterable[BlockId], last_step: int, /) -> None:
        """:meth:`BlockAllocator.free`, of a sequence that was last scheduled in ``last_step``.

        Of a block that several sequences held, the latest step counts:
        :attr:`~paged_core.interfaces.evictor.BlockInfo.last_step`.
        """


@runtime_checkable
class SupportsReservation(Protocol):
    """An allocator that reserves a run of adjacent blocks for a sequence's whole life."""

    def blocks_to_reserve(self, num_tokens: int, max_num_tokens: int, /) -> int:
        """Blocks of the run for a sequence that has ``num_tokens`` and may reach the maximum."""

    def can_reserve(self, count: int, /) -> bool:
        """Return whether a run of ``count`` adjacent blocks is free."""

    def reserve(self, count: int, /) -> list[BlockId]:
        """Take ``count`` adjacent blocks, each referenced once.

        Raises:
            OutOfBlocks: no run is long enough; nothing was taken.
        """
