"""Slot ``evictor``: the order in which unreferenced cached blocks are evicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
    parent_key: int | None = None
    """The :attr:`content_key` of the block before it in its prefix; ``None``: it is the first, or
    the allocator does not say. A block is found only as long as the one before it is cached; a
    cached block that depends on an idle one is idle, too, so an evictor knows of it."""


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


@runtime_checkable
class SupportsDemand(Protocol):
    """An evictor that is told which content waiting requests are going to look up."""

    def wanted(self, content_key: int, is_wanted: bool, /) -> None:
        """Content is wanted from now on, or no more; it need not be held, or even cached.

        Called between steps, once for each change. A new evictor is told of nothing wanted.
        """
