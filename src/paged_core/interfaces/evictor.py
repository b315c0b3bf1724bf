"""Slot ``evictor``: the order in which unreferenced cached blocks are evicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_core.ids import BlockId

if TYPE_CHECKING:
    from paged_core.cache.lookup_oracle import LookupOracle


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictorParts:
    """What the factory of an evictor gets besides its options."""

    num_blocks: int
    block_size: int
    seed: int
    """Of the engine, for an evictor that chooses at random."""
    future: LookupOracle | None = None
    """What will be looked up, in a replay; ``None``: that is not known, as in any live engine."""


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """What an evictor is told of a block when its last reference is dropped.

    Fields with defaults are given if the allocator knows them.
    """

    num_tokens: int
    """Length of the prefix that ends with this block, in tokens."""
    num_hits: int
    """How often a request found it in the cache."""
    last_use: int
    """Counts releases: blocks that one sequence freed together have the same number."""
    published: int = 0
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
