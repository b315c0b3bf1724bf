"""A block allocator whose answers are checked before they reach a block table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from paged_core.errors import PluginError
from paged_core.ids import BlockId, BlockKey
from paged_core.interfaces.allocator import (
    BlockAllocator,
    SupportsLastStep,
    SupportsPrefixCache,
    SupportsReservation,
)

CacheListener = Callable[[BlockId | None, BlockKey | None], None]
"""Called with a block and the content by which it is found, ``None`` if it is not any more; and
with ``None`` twice if no block is."""


class CheckedBlocks(BlockAllocator):
    """Passes calls on to an allocator, and counts the references to its blocks beside it.

    What it hands out must be blocks of the cache that are not in use: else a sequence would write
    over the keys and values of another. It is asked once per block, never per token.

    Methods raise ``PluginError`` if an answer is wrong; the allocator may have changed.
    """

    def __init__(self, inner: BlockAllocator, num_blocks: int) -> None:
        self.inner = inner
        self._release = inner.release if isinstance(inner, SupportsLastStep) else None
        self.references = [0] * num_blocks
        """Of each block."""
        self.content: dict[BlockId, BlockKey] = {}
        """What each cached block holds, referenced or not."""
        self.listener: CacheListener | None = None
        """Told of each change of :attr:`content`."""
        self.evicted: list[BlockId] = []
        """Blocks handed out that held cached content until then, since :meth:`take_evicted`."""

    @property
    def num_free(self) -> int:
        return self.inner.num_free

    def allocate(self, count: int, /) -> list[BlockId]:
        return self._handed_out(self.inner.allocate(count), count)

    def share(self, blocks: Iterable[BlockId], /) -> None:
        shared = list(blocks)
        self.inner.share(shared)
        for block in shared:
            self.references[block] += 1

    def free(self, blocks: Iterable[BlockId], last_step: int | None = None, /) -> None:
        """Free blocks: those of a sequence that was last scheduled in ``last_step``, if given."""
        freed = list(blocks)
        if self._release is None or last_step is None:
            self.inner.free(freed)
        else:
            self._release(freed, last_step)
        for block in freed:
            self.references[block] -= 1

    def ref_count(self, block: BlockId, /) -> int:
        return self.references[block]

    def take_evicted(self) -> list[BlockId]:
        """Return :attr:`evicted` and start another list."""
        evicted, self.evicted = self.evicted, []
        return evicted

    def _handed_out(self, blocks: list[BlockId], count: int) -> list[BlockId]:
        """Reference these blocks once, if they are ``count`` blocks that are not in use."""
        references, last = self.references, len(self.references) - 1
        if len(blocks) != count:
            raise PluginError(f"it handed out {len(blocks)} blocks where {count} were asked for")
        for block in blocks:
            if not 0 <= block <= last:
                raise PluginError(f"it handed out block {block!r}, and the cache has 0 to {last}")
            if references[block]:
                raise PluginError(f"it handed out block {block}, which is in use")
            references[block] = 1
            if self._drop_content(block):
                self.evicted.append(block)
        return blocks

    def _drop_content(self, block: BlockId) -> bool:
        """The content of a block is found no more; return whether it was."""
        if self.content.pop(block, None) is None:
            return False
        if self.listener is not None:
            self.listener(block, None)
        return True


class CheckedAllocator(CheckedBlocks):
    """Also what an allocator finds: blocks that were cached under an equal key, and not handed
    out since; else a sequence would read the keys and values of another.

    It has the methods of :class:`SupportsPrefixCache` and :class:`SupportsReservation`, to be
    called only where :attr:`caches_prefixes` and :attr:`reserves_runs` say that ``inner`` has them.
    """

    def __init__(self, inner: BlockAllocator, num_blocks: int) -> None:
        super().__init__(inner, num_blocks)
        self._prefixes = cast(SupportsPrefixCache, inner)
        self._runs = cast(SupportsReservation, inner)
        self.caches_prefixes = isinstance(inner, SupportsPrefixCache)
        self.reserves_runs = isinstance(inner, SupportsReservation)

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        """Return what is found; :meth:`check_content` when it is taken, which is once."""
        return self._prefixes.look_up(keys)

    def check_content(self, blocks: Sequence[BlockId], keys: Sequence[BlockKey]) -> None:
        """Check that these blocks, which are to be shared, hold what ``keys`` name."""
        if len(blocks) > len(keys):
            raise PluginError(f"look_up() of {len(keys)} keys found {len(blocks)} blocks")
        for block, key in zip(blocks, keys, strict=False):
            if self.content.get(block) != key:
                raise PluginError(
                    f"look_up() found block {block!r}, which does not hold the tokens asked for"
                )

    def cache(self, block: BlockId, key: BlockKey, /) -> BlockId:
        held = self._prefixes.cache(block, key)
        if held == block:
            self.content[block] = key
            if self.listener is not None:
                self.listener(block, key)
            return held
        if self.content.get(held) != key:
            raise PluginError(f"cache() merged block {block} with {held!r}, of other tokens")
        self.references[held] += 1
        self.references[block] -= 1
        return held

    def uncache(self, blocks: Iterable[BlockId], /) -> None:
        uncached = list(blocks)
        self._prefixes.uncache(uncached)
        for block in uncached:
            self._drop_content(block)

    def blocks_to_reserve(self, num_tokens: int, max_num_tokens: int, /) -> int:
        return self._runs.blocks_to_reserve(num_tokens, max_num_tokens)

    def can_reserve(self, count: int, /) -> bool:
        return self._runs.can_reserve(count)

    def reserve(self, count: int, /) -> list[BlockId]:
        return self._handed_out(self._runs.reserve(count), count)
