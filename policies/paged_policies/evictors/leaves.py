"""Evictors that choose among the leaves of the cached prefixes: no block is stranded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

from pydantic import Field

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.plugins.component import ComponentSettings


class LeavesSettings(ComponentSettings):
    """Options of evictors that may be asked for leaves alone."""

    leaves_first: bool = Field(
        default=False,
        description="evict no block that others depend on, which could not be found without it",
    )


class LeavesFirst(Evictor):
    """Asks another evictor, and passes over the blocks on which an idle one depends.

    These are put aside, and given back with the last block that depends on them. What depends on
    an idle block is idle, too, unless equal content is in use; so blocks that are found stay so
    until they are evicted. Operations cost those of the other evictor, amortised.
    """

    def __init__(self, inner: Evictor) -> None:
        self._inner = inner
        self._held: dict[BlockId, BlockInfo] = {}
        self._dependents: Counter[int | None] = Counter()
        self._aside: dict[int | None, dict[BlockId, None]] = {}
        """Blocks that were passed over, by their content."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        self._held[block] = info
        if info.parent_key is not None:
            self._dependents[info.parent_key] += 1
        self._inner.add(block, info)

    def remove(self, block: BlockId, /) -> None:
        aside = self._aside.get(self._held[block].content_key, {})
        if block in aside:
            del aside[block]
        else:
            self._inner.remove(block)
        self._forget(block)

    def evict(self) -> BlockId:
        if not self._held:
            raise OutOfBlocks("no cached block is idle")
        while len(self._inner):
            block = self._inner.evict()
            key = self._held[block].content_key
            if not self._dependents[key]:
                break
            self._aside.setdefault(key, {})[block] = None
        else:  # content keys that are equal by chance: each depends on another
            aside = next(aside for aside in self._aside.values() if aside)
            block, _ = aside.popitem()
        self._forget(block)
        return block

    def __len__(self) -> int:
        return len(self._held)

    def _forget(self, block: BlockId) -> None:
        key = self._held.pop(block).parent_key
        if key is None:
            return
        self._dependents[key] -= 1
        if not self._dependents[key]:
            del self._dependents[key]
            for freed in self._aside.pop(key, ()):
                self._inner.add(freed, self._held[freed])


def on_leaves(made: Callable[[Any, EvictorContext], Evictor]) -> Callable[..., Evictor]:
    """Return a factory that heeds the option ``leaves_first``."""

    @wraps(made, updated=())
    def make(options: LeavesSettings, context: EvictorContext, /) -> Evictor:
        inner = made(options, context)
        return LeavesFirst(inner) if options.leaves_first else inner

    return make
