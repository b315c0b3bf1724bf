"""Evict blocks used once or blocks used again, by which of the two has more ghost hits."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.plugins.component import ComponentSettings


class ArcSettings(ComponentSettings):
    """Options of :class:`ArcEvictor`: it tunes itself."""

    name: Literal["arc"] = "arc"


Held = OrderedDict[BlockId, int | None]
"""Blocks and their content keys, the least recently used first."""
Ghosts = OrderedDict[int, None]
"""Keys of evicted content, the earliest first."""


class ArcEvictor(Evictor):
    """Adaptive replacement cache (Megiddo and Modha, FAST 2003).

    Blocks used once are in one list, blocks that were hit or recomputed in another, both least
    recently used first (T1 and T2 of the paper). The keys of what was evicted from them are kept
    as ghosts (B1 and B2). A ghost hit shows which list should have been longer: the target for
    the first list grows after a hit in B1, and shrinks after a hit in B2. The block to evict comes
    from the first list if that is longer than its target.

    In the paper, the page that missed is known when another is replaced, and the cache has a fixed
    size. Here, content is added when its last user releases it, and only idle blocks are held. So:

    - the target moves when a block is added, after an eviction, and the paper's rule for a first
      list that is exactly as long as its target, which needs the page that missed, is left out;
    - the size of the cache (c) is the most blocks that were held at once; blocks and ghosts
      together are at most twice as many;
    - the target is a share of the blocks held: while fewer are idle, it shrinks with them.

    Operations cost O(1), amortised.
    """

    def __init__(self, options: ArcSettings, context: EvictorContext, /) -> None:
        self._once: Held = OrderedDict()
        self._again: Held = OrderedDict()
        self._once_ghosts: Ghosts = OrderedDict()
        self._again_ghosts: Ghosts = OrderedDict()
        self._size = 0
        self._target = 0.0

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self._size = max(self._size, len(self) + 1)
        key = info.content_key
        came_back = key is not None and self._came_back(key)
        held = self._again if came_back or info.num_hits else self._once
        held[block] = key
        once, again = self._once_ghosts, self._again_ghosts
        while len(self._once) + len(once) > self._size:
            once.popitem(last=False)
        while len(self) + len(once) + len(again) > 2 * self._size:
            again.popitem(last=False)

    def remove(self, block: BlockId, /) -> None:
        if block in self._once:
            del self._once[block]
        else:
            del self._again[block]

    def evict(self) -> BlockId:
        num_held = len(self)
        if not num_held:
            raise OutOfBlocks("no cached block is idle")
        target = self._target * (num_held / self._size)
        if len(self._once) > target or not self._again:
            held, ghosts = self._once, self._once_ghosts
        else:
            held, ghosts = self._again, self._again_ghosts
        block, key = held.popitem(last=False)
        if key is not None:
            self._once_ghosts.pop(key, None)
            self._again_ghosts.pop(key, None)
            ghosts[key] = None
        return block

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def _came_back(self, key: int) -> bool:
        """Return whether content was evicted and is remembered; then move the target, forget it."""
        once, again = self._once_ghosts, self._again_ghosts
        if key in once:
            self._target = min(self._target + max(1.0, len(again) / len(once)), float(self._size))
            del once[key]
        elif key in again:
            self._target = max(self._target - max(1.0, len(once) / len(again)), 0.0)
            del again[key]
        else:
            return False
        return True
