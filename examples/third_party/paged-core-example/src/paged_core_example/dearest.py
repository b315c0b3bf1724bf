"""An evictor that weighs hits by the cost of recomputing a block."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Literal

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.plugins.component import ComponentSettings
from pydantic import Field, NonNegativeFloat, PositiveInt


class DearestSettings(ComponentSettings):
    """Options of :class:`DearestEvictor`."""

    name: Literal["dearest"] = "dearest"
    attention_break_even: PositiveInt = Field(
        default=8192,
        description="prefix length in tokens at which attention costs as much as all the rest",
    )
    hit_weight: NonNegativeFloat = Field(
        default=1.0, description="worth of a hit, in costs of computing the block once"
    )


class DearestEvictor(Evictor):
    """GreedyDual-Size-Frequency (Cherkasova, 1998) over blocks, which are all of one size.

    The value of a block is its hits times the cost of computing it: a constant, plus attention to
    all tokens before it. The value of the last evicted block is added to that of all blocks added
    later, so old hits lose weight. A block can be hit only after those before it in its prefix, so
    of the blocks that one request frees, none has a lower value than one behind it.

    Every operation costs O(log n), amortised.
    """

    def __init__(self, options: DearestSettings, context: EvictorContext, /) -> None:
        self._break_even = options.attention_break_even
        self._hit_weight = options.hit_weight
        self._heap: list[tuple[float, int, BlockId]] = []
        self._entries: dict[BlockId, tuple[float, int, BlockId]] = {}
        self._inflation = 0.0
        self._departure = -1
        self._worth_behind = 0.0

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        if info.last_use != self._departure:
            self._departure, self._worth_behind = info.last_use, 0.0
        # a request frees its last block first: the next ones come before it in the prefix
        self._worth_behind = max(self._worth_behind, self._worth(info))
        entry = (self._worth_behind, -info.num_tokens, block)
        self._entries[block] = entry
        heappush(self._heap, entry)

    def remove(self, block: BlockId, /) -> None:
        del self._entries[block]
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def evict(self) -> BlockId:
        if not self._entries:
            raise OutOfBlocks("no cached block is idle")
        while True:
            entry = heappop(self._heap)
            worth, _, block = entry
            if self._entries.get(block) is entry:  # else it was used again since
                del self._entries[block]
                self._inflation = worth
                return block

    def __len__(self) -> int:
        return len(self._entries)

    def _worth(self, info: BlockInfo) -> float:
        cost = 1 + info.num_tokens / self._break_even
        return self._inflation + (1 + self._hit_weight * info.num_hits) * cost
