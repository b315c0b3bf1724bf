"""Block allocators that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import shuffle
from typing import Any, ClassVar

from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId, BlockKey
from paged_policies.allocators.contiguous import ContiguousAllocator
from paged_policies.allocators.hash_cached import HashCachedAllocator
from paged_policies.allocators.uncached import UncachedAllocator


class LeakyAllocator(UncachedAllocator):
    """Frees only the first two blocks when more are freed at once."""

    def free(self, blocks: Iterable[BlockId], /) -> None:
        given = list(blocks)
        super().free(given[:2] if len(given) > 2 else given)


class DoublingAllocator(UncachedAllocator):
    """Takes a block back as soon as one of its users leaves."""

    def free(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            shared = self._ref_counts[block] > 1
            super().free([block])
            if shared:
                self._free.append(block)


class HalfwayAllocator(UncachedAllocator):
    """Takes what there is before it finds that it is not enough."""

    def allocate(self, count: int, /) -> list[BlockId]:
        taken: list[BlockId] = []
        while len(taken) < count:
            taken += super().allocate(1)
        return taken


class StaleAllocator(HashCachedAllocator):
    """Goes on finding a block that holds something else by now."""

    def _forget(self, block: BlockId) -> None:
        self._keys[block] = None


class TrustingAllocator(HashCachedAllocator):
    """Looks at the hash and not at the tokens."""

    def cache(self, block: BlockId, key: BlockKey, /) -> BlockId:
        return super().cache(block, BlockKey(None, (hash(key),)))

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        return super().look_up([BlockKey(None, (hash(key),)) for key in keys])


class NotUncachingAllocator(HashCachedAllocator):
    """Finds what was never computed."""

    def uncache(self, blocks: Iterable[BlockId], /) -> None:
        pass


class NewestDuplicateAllocator(HashCachedAllocator):
    """Finds the last cached of equal blocks."""

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        found = super().look_up(keys)
        return [
            next(reversed(self._duplicates.get(key, [block])))
            for key, block in zip(keys, found, strict=False)
        ]


class ReferencingAllocator(HashCachedAllocator):
    """Takes what it finds."""

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        found = super().look_up(keys)
        self.share(found)
        return found


class WaitingAllocator(UncachedAllocator):
    """Waits until enough blocks are free."""

    def allocate(self, count: int, /) -> list[BlockId]:
        while count > len(self._free):
            pass
        return super().allocate(count)


class ShufflingAllocator(UncachedAllocator):
    """Hands out blocks at random, without a seed."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        shuffle(self._free)


class OnceAllocator(UncachedAllocator):
    """Drops one reference to a block that is freed twice in one call."""

    def free(self, blocks: Iterable[BlockId], /) -> None:
        super().free(dict.fromkeys(blocks))


class SharedAllocator(UncachedAllocator):
    """Keeps its blocks with the class."""

    _made: ClassVar[dict[int, SharedAllocator]] = {}

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        first = self._made.setdefault(parts.num_blocks, self)
        self._free, self._ref_counts = first._free, first._ref_counts


class CountlessAllocator(UncachedAllocator):
    """Hands out block numbers from 1."""

    def allocate(self, count: int, /) -> list[BlockId]:
        return [BlockId(block + 1) for block in super().allocate(count)]

    def free(self, blocks: Iterable[BlockId], /) -> None:
        super().free(BlockId(block - 1) for block in blocks)

    def ref_count(self, block: BlockId, /) -> int:
        return super().ref_count(BlockId(block - 1))


class EvictingAllocator(HashCachedAllocator):
    """Evicts what it can before it finds that it is not enough."""

    def allocate(self, count: int, /) -> list[BlockId]:
        if count > self.num_free:
            while len(self._evictor):
                block = self._evictor.evict()
                self._forget(block)
                self._empty.append(block)
        return super().allocate(count)


class IdleUncachingAllocator(HashCachedAllocator):
    """Leaves a block that it uncaches with the evictor."""

    def uncache(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            if self._keys[block] is not None:
                self._forget(block)


class UnremovingAllocator(HashCachedAllocator):
    """Leaves a block that is shared again with the evictor."""

    def share(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            self._ref_counts[block] += 1


class MergingAllocator(HashCachedAllocator):
    """Merges a block into an equal one, and does not take the reference with it."""

    def cache(self, block: BlockId, key: BlockKey, /) -> BlockId:
        held = self._by_key.get(key)
        if held is None:
            return super().cache(block, key)
        self.free([block])
        return held


class ShortAllocator(HashCachedAllocator):
    """Tells the evictor that every prefix is one block long."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        add, size = parts.evictor.add, parts.block_size
        parts.evictor.add = lambda block, info: add(block, replace(info, num_tokens=size))


class ScatteringAllocator(ContiguousAllocator):
    """Reserves whatever blocks are free."""

    def reserve(self, count: int, /) -> list[BlockId]:
        if count > self.num_free:
            raise OutOfBlocks("too few are free")
        taken: list[BlockId] = []
        for size in range(count, 0, -1):
            while len(taken) + size <= count and self.can_reserve(size):
                taken += super().reserve(size)
        return taken[::-1]


class ScantAllocator(ContiguousAllocator):
    """Reserves a block too few for a sequence that does not fill its last one."""

    def blocks_to_reserve(self, num_tokens: int, max_num_tokens: int, /) -> int:
        return max(1, max_num_tokens // self._block_size)
