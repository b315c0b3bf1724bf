"""Evictors that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from random import choice
from typing import Any, ClassVar

import numpy as np

from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo
from paged_policies.evictors.lru import LruEvictor
from paged_policies.evictors.queue_informed_lru import QueueInformedLruEvictor
from paged_policies.evictors.ranked import FifoEvictor, RankedEvictor
from unit.faulty_settings import with_another


class _InformedEvictor(LruEvictor):
    """Keeps what it is told."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._infos: dict[BlockId, BlockInfo] = {}
        self._lengths: dict[BlockId, int] = {}
        self._seen: list[Any] = []
        self._wanted: set[int] = set()
        self._by_key: dict[int | None, BlockId] = {}

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        super().add(block, info)
        self._infos[block], self._lengths[block] = info, -info.num_tokens

    def evict(self) -> BlockId:
        if not self._blocks:
            return super().evict()
        block = self.first()
        self.remove(block)
        return block

    def wanted(self, content_key: int, is_wanted: bool, /) -> None:
        (self._wanted.add if is_wanted else self._wanted.discard)(content_key)

    def first(self) -> BlockId:
        """The one to go."""
        return next(iter(self._blocks))

    def remove(self, block: BlockId, /) -> None:
        super().remove(block)
        del self._lengths[block]


class TidyEvictor(_InformedEvictor):
    """Looks through all blocks when one comes back and none was evicted in between."""

    num_hits = 0

    def evict(self) -> BlockId:
        self.num_hits = 0
        return super().evict()

    def remove(self, block: BlockId, /) -> None:
        super().remove(block)
        self.num_hits += 1
        if self.num_hits > 2:
            self._seen = sorted(self._lengths.values())


def search(self: _InformedEvictor) -> BlockId:
    best = next(iter(self._blocks))
    for block in self._blocks:
        if self._infos[block].num_tokens > self._infos[best].num_tokens:
            best = block
    return best


FIRST = with_another(
    __name__,
    _InformedEvictor,
    "first",
    {
        # copies all that it holds
        "CopyingEvictor": lambda self: next(iter([*self._blocks])),
        # sorts all that it holds, inside built-ins
        "SortingEvictor": lambda self: min(zip(self._lengths.values(), self._lengths, strict=True))[
            1
        ],
        # looks at all that it holds, also in an array, a set, or past what is wanted
        "SearchingEvictor": search,
        "ArrayEvictor": lambda self: BlockId(int(np.fromiter(self._blocks, int)[0])),
        "SetEvictor": lambda self: min(self._blocks.keys() - {-1}),
        "SkippingEvictor": lambda self: next(
            (block for block in self._blocks if self._infos[block].content_key not in self._wanted),
            next(iter(self._blocks)),
        ),
        # breaks ties by where what it is told is in memory
        "PlaceEvictor": lambda self: min(
            self._blocks, key=lambda b: (self._infos[b].last_use, id(self._infos[b]))
        ),
        # uses random numbers without a seed
        "RollingEvictor": lambda self: next(choice([iter, reversed])(self._blocks)),
        # evicts the shortest prefix first of what one request left
        "WrongTieEvictor": lambda self: min(
            self._blocks, key=lambda b: (self._infos[b].last_use, self._infos[b].num_tokens)
        ),
    },
)


def hang(self: LruEvictor) -> BlockId:
    while len(self._blocks) == 1:
        pass
    return LruEvictor.evict(self)


EVICTING = with_another(
    __name__,
    LruEvictor,
    "evict",
    {
        # raises what its container raises when it is empty
        "BareEvictor": lambda self: self._blocks.popitem(last=False)[0],
        # searches for ever for a block of another request than the last
        "HangingEvictor": hang,
    },
)
globals().update(FIRST | EVICTING)


class PackingEvictor(LruEvictor):
    """Takes it that numbers of blocks have 16 bits."""

    def evict(self) -> BlockId:
        return BlockId(super().evict() & 0xFFFF)


class CreditEvictor(LruEvictor):
    """Keeps what had hits when it left and came back."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        gone, credit = (self.__dict__.setdefault(each, {}) for each in ("gone", "credit"))
        if info.content_key in gone:
            credit[info.content_key] = gone.pop(info.content_key)
        elif info.num_hits:
            gone[info.content_key] = info.num_hits
            if len(gone) > 16:
                del gone[next(iter(gone))]
        super().add(block, info)


class ScanningEvictor(LruEvictor):
    """Looks for wanted content in all blocks."""

    def wanted(self, content_key: int, wanted: bool, /) -> None:
        for _ in self._blocks:
            pass


class CountdownEvictor(LruEvictor):
    """Goes over a block as often as it was hit."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        for _ in range(info.num_hits % (1 << 20)):
            pass
        super().add(block, info)


class LeakyEvictor(LruEvictor):
    """Forgets a block that comes back when it holds several."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        if len(self) < 3:
            super().add(block, info)


class NeedyEvictor(LruEvictor):
    """Needs a content key, which an allocator need not give."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        if (info.content_key + 1) % 2 in (0, 1):  # type: ignore[operator]
            super().add(block, info)


class SilentEvictor(LruEvictor):
    """Does not raise when it is to remove a block that it does not hold."""

    def remove(self, block: BlockId, /) -> None:
        self._blocks.pop(block, None)


class SharedEvictor(LruEvictor):
    """Keeps its blocks with the class."""

    _all: ClassVar[OrderedDict[BlockId, None]] = OrderedDict()

    def __init__(self, options: Any, parts: Any, /) -> None:
        self._blocks = self._all


class KeyOrderEvictor(RankedEvictor):
    """Evicts the content of the lowest key first."""

    def rank(self, info: BlockInfo, /) -> Any:
        return (info.content_key or 0, info.last_use)


class HistoryEvictor(_InformedEvictor):
    """Keeps the numbers of all blocks that it has evicted, in their order."""

    def evict(self) -> BlockId:
        self._seen.append(super().evict())
        return self._seen[-1]


class PopularEvictor(_InformedEvictor):
    """Remembers for ever what was hit more than once."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        super().add(block, info)
        if info.num_hits > 1:
            self._by_key[info.content_key] = block


class CompactingEvictor(_InformedEvictor):
    """Copies all that it holds each time that some blocks have come."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        super().add(block, info)
        self._seen = [*self._seen, block] if len(self._seen) < 16 else [*self._blocks][:1]


class PilingEvictor(_InformedEvictor):
    """Remembers all that was added since the last eviction."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        super().add(block, info)
        self._seen.append(info)

    def evict(self) -> BlockId:
        self._seen.clear()
        return super().evict()


class OneBlockPerKeyEvictor(_InformedEvictor):
    """Takes it that content lies in one block only, and forgets the other."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self._blocks.pop(self._by_key.get(info.content_key, block), None)
        self._by_key[info.content_key] = block
        super().add(block, info)


class CrowdedEvictor(_InformedEvictor):
    """Keeps the blocks that depend on a content in a list."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._below: defaultdict[int | None, list[BlockId]] = defaultdict(list)

    def of(self, info: BlockInfo) -> int | None:
        """The list that it is in."""
        return info.parent_key

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        super().add(block, info)
        if self.of(info) is not None:
            self._below[self.of(info)].append(block)

    def remove(self, block: BlockId, /) -> None:
        super().remove(block)
        parent = self.of(self._infos[block])
        if parent in self._below:
            self._below[parent].remove(block)
            if not self._below[parent]:
                del self._below[parent]


class TogetherEvictor(CrowdedEvictor):
    """Keeps the blocks that were left together in a list."""

    def of(self, info: BlockInfo) -> int | None:
        return info.last_use


class CountingEvictor(LruEvictor):
    """Counts what it holds one by one."""

    def __len__(self) -> int:
        return sum(1 for _ in self._blocks)


class ForeseeingEvictor(LruEvictor):
    """Takes it that the future is known."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._next_use = parts.future.next_use


class WalkingEvictor(LruEvictor):
    """Looks at every block that is in use again."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._used: set[BlockId] = set()

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        super().add(block, info)
        self._used.discard(block)

    def remove(self, block: BlockId, /) -> None:
        super().remove(block)
        self._used.add(block)

    def evict(self) -> BlockId:
        for _ in self._used:
            pass
        return super().evict()


class StrandingEvictor(FifoEvictor):
    """Evicts the first block of a prefix first, though it promises not to."""


class DeafEvictor(QueueInformedLruEvictor):
    """Ignores what waiting requests want."""

    def wanted(self, content_key: int, is_wanted: bool, /) -> None:
        pass


class PossessiveEvictor(QueueInformedLruEvictor):
    """Takes it that it holds all content that is wanted."""

    def wanted(self, content_key: int, is_wanted: bool, /) -> None:
        for block in self._by_key[content_key]:
            self._blocks.remove(block)
            self._blocks.add(block, (is_wanted, self._held[block][0]))
