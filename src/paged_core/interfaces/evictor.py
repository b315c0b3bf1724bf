"""Slot ``evictor``: the order in which unreferenced cached blocks are evicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from paged_core.ids import BlockId


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """Facts that an evictor gets of a block when its last reference is dropped.

    Fields with defaults are given if the allocator knows them.
    """

    num_tokens: int
    """Length of the prefix that ends with this block, in tokens."""
    num_hits: int
    """Number of times that a request found it in the cache."""
    last_use: int
    """Counts releases: blocks that one sequence freed together have the same number."""
    cache_order: int = 0
    """Counts blocks in the order in which their content was cached."""
    content_key: int | None = None
    """The same number for the same content, in any block and after an eviction too; a hash: a
    collision may change what is evicted and nothing else. ``None``: the allocator does not say."""
    last_step: int | None = None
    """The last step in which a sequence that held it was scheduled; ``None``: the allocator does
    not say."""


class Evictor(ABC):
    """Holds the idle cached blocks. No operation may cost more than O(log n), amortised.

    What it remembers of evicted content is bounded by the number of blocks. So that runs can be
    repeated, what it evicts follows from what it was told and from the seed.
    """

    @abstractmethod
    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        """Add a block that became idle."""

    @abstractmethod
    def remove(self, block: BlockId, /) -> None:
        """Remove a block that is referenced again.

        Raises:
            KeyError: it is not here.
        """

    @abstractmethod
    def evict(self) -> BlockId:
        """Choose the block to evict, and remove it.

        Raises:
            OutOfBlocks: there is none.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Blocks held."""
