"""Evictors that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from random import choice
from typing import Any, ClassVar

from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_policies.evictors.lru import LruEvictor
from paged_policies.evictors.ranked import RankedEvictor


class _UnsortedEvictor(Evictor):
    """Knows the length of the prefix of what it holds, in no order."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        self.held: dict[BlockId, int] = {}

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self.held[block] = -info.num_tokens

    def remove(self, block: BlockId, /) -> None:
        del self.held[block]

    def evict(self) -> BlockId:
        if not self.held:
            raise OutOfBlocks("none is here")
        block = self.first()
        del self.held[block]
        return block

    def first(self) -> BlockId:
        """The one to go."""
        return next(iter(self.held))

    def __len__(self) -> int:
        return len(self.held)


class LeakyEvictor(LruEvictor):
    """Forgets a block that comes back when it holds several."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        if len(self) < 3:
            super().add(block, info)


class PilingEvictor(Evictor):
    """Keeps an entry of each block that is removed until an eviction comes upon it."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        self.entries: list[tuple[int, int, BlockId]] = []
        self.live: dict[BlockId, tuple[int, int, BlockId]] = {}

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self.live[block] = entry = (info.num_tokens, info.last_use, block)
        heappush(self.entries, entry)

    def remove(self, block: BlockId, /) -> None:
        del self.live[block]

    def evict(self) -> BlockId:
        while self.entries:
            entry = heappop(self.entries)
            if self.live.get(entry[2]) is entry:
                del self.live[entry[2]]
                return entry[2]
        raise OutOfBlocks("none is here")

    def __len__(self) -> int:
        return len(self.live)


class KeepingEvictor(LruEvictor):
    """Gives a block up without letting go of it."""

    def evict(self) -> BlockId:
        block = super().evict()
        self._blocks[block] = None
        return block


class SilentEvictor(LruEvictor):
    """Does not raise when it is to remove a block that it does not hold."""

    def remove(self, block: BlockId, /) -> None:
        self._blocks.pop(block, None)


class SortingEvictor(_UnsortedEvictor):
    """Sorts all that it holds, inside built-ins."""

    def first(self) -> BlockId:
        return min(zip(self.held.values(), self.held, strict=True))[1]


class SearchingEvictor(_UnsortedEvictor):
    """Looks at all that it holds."""

    def first(self) -> BlockId:
        best = next(iter(self.held))
        for block in self.held:
            if self.held[block] < self.held[best]:
                best = block
        return best


class RollingEvictor(LruEvictor):
    """Uses random numbers without a seed."""

    def evict(self) -> BlockId:
        if len(self) < 2:
            return super().evict()
        block: BlockId = next(choice([iter, reversed])(self._blocks))
        self.remove(block)
        return block


class _InformedEvictor(LruEvictor):
    """Keeps what it is told."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._infos: dict[BlockId, BlockInfo] = {}
        self._seen: set[int | None] = set()
        self._by_key: dict[int | None, BlockId] = {}

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        super().add(block, info)
        self._infos[block] = info

    def evict(self) -> BlockId:
        if not self._blocks:
            return super().evict()
        block = self.first()
        self.remove(block)
        return block

    def first(self) -> BlockId:
        """The one to go."""
        return next(iter(self._blocks))


class WrongTieEvictor(_InformedEvictor):
    """Evicts the shortest prefix first of what one request left."""

    def first(self) -> BlockId:
        infos = self._infos
        return min(self._blocks, key=lambda b: (infos[b].last_use, infos[b].num_tokens))


class RunScanEvictor(_InformedEvictor):
    """Breaks ties among adjacent blocks only: a block of another step ends its scan."""

    def first(self) -> BlockId:
        best, infos = super().first(), self._infos
        for block in self._blocks:
            if infos[block].last_step != infos[best].last_step:
                break
            if infos[block].num_tokens > infos[best].num_tokens:
                best = block
        return best


class OneBlockPerKeyEvictor(_InformedEvictor):
    """Takes it that content lies in one block only, and forgets the other."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self._blocks.pop(self._by_key.get(info.content_key, block), None)
        self._by_key[info.content_key] = block
        super().add(block, info)


class ConfusingEvictor(_InformedEvictor):
    """Knows content that comes back by the last bits of its key, and takes other content for it."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        super().add(block, info)
        if info.content_key is not None and info.content_key % 256 not in self._seen:
            self._seen.add(info.content_key % 256)
            self._blocks.move_to_end(block, last=False)


class KeyOrderEvictor(RankedEvictor):
    """Evicts the content of the lowest key first."""

    def rank(self, info: BlockInfo, /) -> Any:
        return (info.content_key or 0, info.last_use)


class HoardingEvictor(_InformedEvictor):
    """Remembers all content that was ever added."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        super().add(block, info)
        self._seen.add(info.content_key)


class HangingEvictor(LruEvictor):
    """Searches for ever for a block of another request than the last."""

    def evict(self) -> BlockId:
        while len(self._blocks) == 1:
            pass
        return super().evict()


class StaleHeapEvictor(Evictor):
    """A heap whose entries of removed blocks are recognised by the block alone."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        self.heap: list[tuple[int, int, BlockId]] = []
        self.held: set[BlockId] = set()

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        heappush(self.heap, (info.num_hits, info.last_use, block))
        self.held.add(block)

    def remove(self, block: BlockId, /) -> None:
        self.held.remove(block)

    def evict(self) -> BlockId:
        while self.heap:
            *_, block = heappop(self.heap)
            if block in self.held:
                self.held.remove(block)
                return block
        raise OutOfBlocks("none is here")

    def __len__(self) -> int:
        return len(self.held)


class SharedEvictor(LruEvictor):
    """Keeps its blocks with the class."""

    _all: ClassVar[OrderedDict[BlockId, None]] = OrderedDict()

    def __init__(self, options: Any, parts: Any, /) -> None:
        self._blocks = self._all


class BareEvictor(_UnsortedEvictor):
    """Raises what its container raises when it is empty."""

    def evict(self) -> BlockId:
        return self.held.popitem()[0]


class NeedyEvictor(LruEvictor):
    """Needs a content key, which an allocator need not give."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        if (info.content_key + 1) % 2 in (0, 1):  # type: ignore[operator]
            super().add(block, info)
