"""Blocks that are found again by their content until they are evicted."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from paged_core.engine.contexts import AllocatorContext
from paged_core.errors import OutOfBlocks, PluginError
from paged_core.ids import BlockId, BlockKey
from paged_core.interfaces.allocator import BlockAllocator
from paged_core.interfaces.evictor import BlockInfo
from paged_core.plugins.component import ComponentSettings


class HashCachedSettings(ComponentSettings):
    """Options of :class:`HashCachedAllocator`."""

    name: Literal["hash_cached"] = "hash_cached"
    merge_duplicates: bool = Field(
        default=False,
        description="a block filled while an equal one is cached is replaced by it (vLLM V0)",
    )


class HashCachedAllocator(BlockAllocator):
    """Automatic prefix caching by content hash, as in vLLM (V1; V0 with ``merge_duplicates``).

    A cached block without references can still be found, and is added to the evictor. Blocks
    without cached content are allocated first (those freed last before those that never were in
    use, whose memory the system has yet to provide), then those that the evictor evicts. Several
    blocks may hold equal content; the one cached first is found.
    """

    def __init__(self, options: HashCachedSettings, context: AllocatorContext, /) -> None:
        self._merge_duplicates = options.merge_duplicates
        self._evictor = context.evictor
        self._empty = deque(BlockId(block) for block in range(context.num_blocks))
        self._ref_counts = [0] * context.num_blocks
        self._keys: list[BlockKey | None] = [None] * context.num_blocks
        self._hits = [0] * context.num_blocks
        self._by_key: dict[BlockKey, BlockId] = {}
        """The block that is found: of equal ones, the one cached first."""
        self._duplicates: dict[BlockKey, OrderedDict[BlockId, None]] = {}
        """Further blocks of equal content, in the order in which they were cached."""
        self._cache_order = [0] * context.num_blocks
        self._last_steps: list[int | None] = [None] * context.num_blocks
        self._num_idle = 0
        """Blocks that the evictor holds."""
        self._departures = 0
        self._num_cachings = 0

    @property
    def num_free(self) -> int:
        return len(self._empty) + self._num_idle

    def allocate(self, count: int, /) -> list[BlockId]:
        if count > self.num_free:
            raise OutOfBlocks(f"{count} blocks are needed and {self.num_free} are free")
        taken = []
        for _ in range(count):
            if self._empty:
                block = self._empty.popleft()
            else:
                block = self._evictor.evict()
                self._check_idle(block)
                self._num_idle -= 1
                self._forget(block)
            self._ref_counts[block] = 1
            self._hits[block] = 0
            taken.append(block)
        return taken

    def share(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            if not self._ref_counts[block]:
                self._evictor.remove(block)
                self._num_idle -= 1
            self._ref_counts[block] += 1
            self._hits[block] += 1

    def free(self, blocks: Iterable[BlockId], /) -> None:
        self._departures += 1
        for block in blocks:
            self._ref_counts[block] -= 1
            if self._ref_counts[block]:
                continue
            key = self._keys[block]
            if key is None:
                self._empty.appendleft(block)
            else:
                info = BlockInfo(
                    key.num_tokens,
                    self._hits[block],
                    self._departures,
                    self._cache_order[block],
                    hash(key),
                    self._last_steps[block],
                    None if key.parent is None else hash(key.parent),
                )
                self._evictor.add(block, info)
                self._num_idle += 1

    def ref_count(self, block: BlockId, /) -> int:
        return self._ref_counts[block]

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        found: list[BlockId] = []
        by_key = self._by_key
        for key in keys:
            block = by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def cache(self, block: BlockId, key: BlockKey, /) -> BlockId:
        held = self._by_key.setdefault(key, block)
        if held != block:
            if self._merge_duplicates:
                self.share([held])
                self.free([block])
                return held
            self._duplicates.setdefault(key, OrderedDict())[block] = None
        self._keys[block] = key
        self._num_cachings += 1
        self._cache_order[block] = self._num_cachings
        return block

    def uncache(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            if self._keys[block] is not None:
                self._forget(block)
                if not self._ref_counts[block]:
                    self._evictor.remove(block)
                    self._num_idle -= 1
                    self._empty.appendleft(block)

    def release(self, blocks: Iterable[BlockId], last_step: int, /) -> None:
        released, last_steps = list(blocks), self._last_steps
        for block in released:
            known = last_steps[block]
            if known is None or known < last_step:  # its content before ran in earlier steps
                last_steps[block] = last_step
        self.free(released)

    def _check_idle(self, block: BlockId) -> None:
        """PluginError if an evictor named a block that it does not hold."""
        is_block = type(block) is int and 0 <= block < len(self._keys)
        if not is_block or self._ref_counts[block] or self._keys[block] is None:
            raise PluginError(
                f"evictor {type(self._evictor).__qualname__}: evict() returned {block!r}, which is "
                "no block that it holds; it has to return one that was added, and not since removed"
            )

    def _forget(self, block: BlockId) -> None:
        key = self._keys[block]
        assert key is not None
        self._keys[block] = None
        others = self._duplicates.get(key)
        if self._by_key[key] != block:
            assert others is not None
            del others[block]
        elif others:
            self._by_key[key] = others.popitem(last=False)[0]
        else:
            del self._by_key[key]
        if others is not None and not others:
            del self._duplicates[key]
