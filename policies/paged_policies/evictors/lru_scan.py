"""Evict the least recently used block, as vLLM V0 scans for it."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import Any

from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_policies.evictors.ranked_blocks import RankedBlocks


class LruScanEvictor(Evictor):
    """Least recently used; of blocks last used in the same step, the longest prefix first.

    The rule is that of vLLM 0.6.3's V0 engine. Idle blocks are kept in the order in which they were
    released. A scan begins at the first of them, stops at one whose last step is later than that of
    the best so far, and takes the one that ends the longest prefix, the earlier of equals. The last
    step of a block is the last one in which a sequence that held it was scheduled; if it is
    not known, the release counter is used.

    Blocks are kept in stretches in which the last step never rises. A scan that enters a stretch
    goes through all of it, so it needs only the longest prefix of the stretch. Operations cost
    O(log n), amortised, plus, in ``evict``, one comparison for each stretch that the scan enters:
    more than one only if sequences were released in another order than that of their last steps,
    as after an abort.
    """

    def __init__(self) -> None:
        self._stretches: OrderedDict[int, _Stretch] = OrderedDict()
        self._places: dict[BlockId, _Stretch] = {}
        self._arrivals = count()

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        arrival = next(self._arrivals)
        step = info.last_use if info.last_step is None else info.last_step
        stretch = next(reversed(self._stretches.values()), None)
        if stretch is None or step > stretch.lowest:
            stretch = self._stretches[arrival] = _Stretch(arrival)
        stretch.add(block, step, (-info.num_tokens, arrival))
        self._places[block] = stretch

    def remove(self, block: BlockId, /) -> None:
        stretch = self._places.pop(block)
        stretch.remove(block)
        if not stretch.steps:
            del self._stretches[stretch.number]

    def evict(self) -> BlockId:
        best: _Stretch | None = None
        for stretch in self._stretches.values():
            if best is None:
                best = stretch
            elif stretch.first_step > best.longest_step:
                break
            elif stretch.num_tokens > best.num_tokens:
                best = stretch
        if best is None:
            raise OutOfBlocks("no cached block is idle")
        block = best.longest
        self.remove(block)
        return block

    def __len__(self) -> int:
        return len(self._places)


class _Stretch:
    """Blocks released one after the other, each last used no later than the one before it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps: OrderedDict[BlockId, int] = OrderedDict()
        """The last step of each block, in the order of release."""
        self.lowest = 0
        """The last step of the block that was added last, even if it has been removed since."""
        self._ranked = RankedBlocks()

    def add(self, block: BlockId, step: int, rank: Any) -> None:
        self.steps[block] = self.lowest = step
        self._ranked.add(block, rank)

    def remove(self, block: BlockId) -> None:
        del self.steps[block]
        self._ranked.remove(block)

    @property
    def first_step(self) -> int:
        """The last step of the block released first."""
        return next(iter(self.steps.values()))

    @property
    def longest(self) -> BlockId:
        """The block that ends the longest prefix, the first of equals."""
        return self._ranked.first()[1]

    @property
    def num_tokens(self) -> int:
        """Length of that prefix."""
        (negated, _), _ = self._ranked.first()
        return -int(negated)

    @property
    def longest_step(self) -> int:
        """The last step of that block."""
        return self.steps[self.longest]
