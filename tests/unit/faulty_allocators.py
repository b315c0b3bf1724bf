"""Block allocators that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import shuffle
from typing import Any, ClassVar, cast

from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId, BlockKey
from paged_core.interfaces.evictor import BlockInfo
from paged_policies.allocators.contiguous import ContiguousAllocator
from paged_policies.allocators.hash_cached import HashCachedAllocator
from paged_policies.allocators.uncached import UncachedAllocator
from unit.faulty_settings import with_another


def emptying(self: UncachedAllocator, blocks: Iterable[BlockId]) -> None:
    left = list(blocks)
    while left:
        UncachedAllocator.free(self, [left.pop(0)])


FREEING = with_another(
    __name__,
    UncachedAllocator,
    "free",
    {
        # frees only the first two blocks when more are freed at once
        "LeakyAllocator": lambda self, blocks: UncachedAllocator.free(self, list(blocks)[:2]),
        # takes them from the front of a list
        "EmptyingAllocator": emptying,
        # drops one reference to a block that is freed twice in one call
        "OnceAllocator": lambda self, blocks: UncachedAllocator.free(self, dict.fromkeys(blocks)),
    },
)


def piecemeal(self: UncachedAllocator, count: int) -> list[BlockId]:
    return [block for _ in range(count) for block in UncachedAllocator.allocate(self, 1)]


def walking(self: UncachedAllocator, count: int) -> list[BlockId]:
    for _ in filter(None, self._ref_counts):
        pass
    return UncachedAllocator.allocate(self, count)


def patient(self: UncachedAllocator, count: int) -> list[BlockId]:
    while count > len(self._free):
        pass
    return UncachedAllocator.allocate(self, count)


# take what there is before they find that it is not enough, and wait until it is
ALLOCATING = with_another(
    __name__,
    UncachedAllocator,
    "allocate",
    {
        **{"HalfwayAllocator": piecemeal, "WaitingAllocator": patient, "WalkingAllocator": walking},
        # counts those that are free in a built-in
        "CountingAllocator": lambda self, count: (
            self._ref_counts.count(0) and UncachedAllocator.allocate(self, count)
        ),
    },
)
globals().update(FREEING | ALLOCATING)


class ShufflingAllocator(UncachedAllocator):
    """Hands out blocks at random, without a seed."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        shuffle(self._free)


class SharedAllocator(UncachedAllocator):
    """Keeps its blocks with the class."""

    _made: ClassVar[dict[int, SharedAllocator]] = {}

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        first = self._made.setdefault(parts.num_blocks, self)
        self._free, self._ref_counts = first._free, first._ref_counts


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


class OverwritingAllocator(HashCachedAllocator):
    """Tells the evictor of the step of the last release instead of the latest one."""

    def release(self, blocks: Iterable[BlockId], last_step: int, /) -> None:
        for block in (held := list(blocks)):
            self._last_steps[block] = 0
        super().release(held, last_step)


class FirstStepAllocator(HashCachedAllocator):
    """Does not tell the evictor of step 0."""

    def release(self, blocks: Iterable[BlockId], last_step: int, /) -> None:
        super().release(blocks, last_step or cast("Any", None))


class TouchingAllocator(HashCachedAllocator):
    """Takes what is only looked up for what was used."""

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        found = super().look_up(keys)
        for block in found if self._num_idle == 1 else ():
            self.share([block])
            self.free([block])
        return found


class ReusingAllocator(HashCachedAllocator):
    """Returns all that it finds in the same list."""

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        self.__dict__.setdefault("found", [])[:] = super().look_up(keys)
        return cast("list[BlockId]", self.__dict__["found"])


class HereditaryAllocator(HashCachedAllocator):
    """Leaves a block the hits that its content before had."""

    def allocate(self, count: int, /) -> list[BlockId]:
        before = list(self._hits)
        taken = super().allocate(count)
        for block in taken:
            self._hits[block] = before[block]
        return taken


class SearchingAllocator(HashCachedAllocator):
    """Looks through all that is cached for what is to be cached."""

    def cache(self, block: BlockId, key: BlockKey, /) -> BlockId:
        any(held is key for held in self._by_key)
        return super().cache(block, key)


class ClimbingAllocator(HashCachedAllocator):
    """Goes from each key to the beginning of its prefix."""

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        for key in keys:
            before: BlockKey | None = key
            while before is not None:
                before = before.parent
        return super().look_up(keys)


class RecountingAllocator(UncachedAllocator):
    """Counts those that are free each time that it is asked."""

    @property
    def num_free(self) -> int:
        return sum(1 for count in self._ref_counts if not count)


class ListingAllocator(HashCachedAllocator):
    """Keeps all blocks of a content in a list, too."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._alike: defaultdict[BlockKey, list[BlockId]] = defaultdict(list)

    def cache(self, block: BlockId, key: BlockKey, /) -> BlockId:
        self._alike[key].append(block)
        return super().cache(block, key)

    def _forget(self, block: BlockId) -> None:
        if (key := self._keys[block]) is not None:
            self._alike[key].remove(block)
        super()._forget(block)


class RootedAllocator(HashCachedAllocator):
    """Goes to the beginning of a prefix when its block is cached."""

    def cache(self, block: BlockId, key: BlockKey, /) -> BlockId:
        before: BlockKey | None = key
        while before is not None:
            before = before.parent
        return super().cache(block, key)


class LeapingAllocator(HashCachedAllocator):
    """Finds content after a miss."""

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        one = super().look_up
        return [block for key in keys for block in one([key])]


class ShortAllocator(HashCachedAllocator):
    """Tells the evictor that every prefix is one block long."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        add, self._size = parts.evictor.add, parts.block_size
        parts.evictor.add = lambda block, info: add(block, self.told(info))

    def told(self, info: BlockInfo) -> BlockInfo:
        """The facts that it tells."""
        return replace(info, num_tokens=self._size)


class NumberedAllocator(ShortAllocator):
    """Has numbers of its own for contents."""

    def told(self, info: BlockInfo) -> BlockInfo:
        own, parent = (None if key is None else ~key for key in (info.content_key, info.parent_key))
        return replace(info, content_key=own, parent_key=parent)


class ScatteringAllocator(ContiguousAllocator):
    """Reserves whatever blocks are free."""

    def reserve(self, count: int, /) -> list[BlockId]:
        if count > self.num_free:
            raise OutOfBlocks("too few are free")
        return [block for _ in range(count) for block in ContiguousAllocator.reserve(self, 1)][::-1]


class ScantAllocator(ContiguousAllocator):
    """Reserves a block too few for a sequence that does not fill its last one."""

    def blocks_to_reserve(self, num_tokens: int, max_num_tokens: int, /) -> int:
        return max(1, max_num_tokens // self._block_size)
