"""The blocks that the prefix cache finds by content, and those that a step still has to fill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from paged_core.ids import BlockId, BlockKey, SeqId, extend_keys
from paged_core.interfaces.allocator import BlockAllocator, SupportsPrefixCache
from paged_core.sequence import SequenceState

CacheListener = Callable[[BlockId | None, BlockKey | None], None]
"""Called with a block and the content by which it is found, ``None`` if it is not any more; and
with ``None`` twice if no block is."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The cache's one answer about a sequence that is to start: what it finds, and what is free."""

    blocks: Sequence[BlockId] = ()
    """Blocks that hold them; nothing is referenced yet."""
    num_committed: int = 0
    """Leading blocks that an earlier step filled; the rest is filled in this one."""
    num_idle: int = 0
    """Unreferenced ones among the blocks: sharing them takes them from the free ones."""
    num_free: int = 0
    """Unreferenced device blocks, cached or not."""
    has_run: bool = True
    """False if the allocator reserves adjacent blocks, and has too few of them."""


@dataclass(frozen=True, slots=True)
class Merge:
    """A sequence shares an equal block and not its own, which is kept until the step is planned.

    The chunk that fills the shared block may be withdrawn until then, or the own block is still to
    be copied from.
    """

    sequence: SequenceState
    index: int
    own: BlockId


class PrefixCache:
    """Caches full blocks under their content, and uncaches those that are not filled after all.

    A block is cached while the step that computes its last token is planned, so that requests
    admitted later in the same step can share it; or, if its tokens were not known then, in a later
    step. Until the step is planned, its chunk may be withdrawn: :meth:`uncache_sequences`.

    It changes no block table: :class:`~paged_core.cache.kv_cache.KVCache` does. With an allocator
    that caches no prefixes it finds and caches nothing.
    """

    def __init__(
        self, allocator: BlockAllocator, block_size: int, listener: CacheListener | None
    ) -> None:
        self._allocator = allocator
        self._finder = allocator if isinstance(allocator, SupportsPrefixCache) else None
        self._block_size = block_size
        self.listener = listener
        """Told of each change of :attr:`content`."""
        self.content: dict[BlockId, BlockKey] = {}
        """Keys of the blocks that are found, referenced or not."""
        self.evicted: list[BlockId] = []
        """Blocks handed out that were found until then, since the list was last taken."""
        self._cached: dict[SeqId, list[BlockId]] = defaultdict(list)
        """By sequence: blocks cached while the present step is planned."""
        self._uncommitted: set[BlockId] = set()
        """Blocks among them that this step is to fill."""
        self._uncommitted_keys: set[BlockKey] = set()
        """The contents of the uncommitted blocks."""
        self._merges: list[Merge] = []

    def keys(self, sequence: SequenceState, count: int) -> Sequence[BlockKey]:
        """Content keys of the first ``count`` blocks, as far as all their tokens are known."""
        if self._finder is None:
            return ()
        keys, size = sequence.table.keys, self._block_size
        count = min(count, len(sequence.tokens) // size)
        if len(keys) < count:
            extend_keys(keys, sequence.tokens, size, sequence.group.request.cache_salt, count)
        return keys if len(keys) == count else keys[:count]

    def look_up(self, sequence: SequenceState, count: int) -> list[BlockId]:
        """Find blocks that hold the first ``count`` blocks of a sequence, up to the first miss.

        Of equal blocks, one that its group holds is preferred: sharing it takes no free block.
        """
        if self._finder is None or count == 0:
            return []
        keys = self.keys(sequence, count)
        found = self._finder.look_up(keys)
        if found and len(sequence.group.live) > 1:
            found = list(found)
            for sibling in sequence.group.live:
                table = sibling.table
                for index in range(min(table.num_cached, len(found))):
                    if table.keys[index] != keys[index]:
                        break
                    found[index] = table.blocks[index]
        return found

    def num_committed(self, blocks: Sequence[BlockId]) -> int:
        """Leading ``blocks`` that an earlier step filled."""
        if not self._uncommitted:
            return len(blocks)
        return sum(1 for _ in takewhile(lambda block: block not in self._uncommitted, blocks))

    def num_in_common(self, sequences: Iterable[SequenceState]) -> int:
        """Blocks that sequences find of those before them, if they are computed in this order."""
        known: set[BlockKey] = set()
        found = 0
        for sequence in sequences:
            keys = self.keys(sequence, sequence.num_tokens // self._block_size)
            last = (sequence.num_tokens - 1) // self._block_size  # one token is always computed
            found += sum(1 for _ in takewhile(known.__contains__, keys[:last]))
            known.update(keys)
        return found

    def cache(self, sequence: SequenceState, index: int, *, is_copied: bool) -> BlockId:
        """Cache one full block; return the block that the sequence holds from now on.

        That is an equal one that was cached before, where the allocator merges duplicates. The
        sequence's own block is then kept for :meth:`uncache_sequences`, if the equal one is only
        filled in this step, or if this step copies from the own one (``is_copied``).
        """
        own, key = sequence.table.blocks[index], sequence.table.keys[index]
        kept = is_copied or key in self._uncommitted_keys
        if kept:
            self._allocator.share([own])
        assert self._finder is not None
        held = self._finder.cache(own, key)
        if held == own:
            self.content[own] = key
            if self.listener is not None:
                self.listener(own, key)
            self._cached[sequence.id].append(own)
            if index >= sequence.num_scheduled // self._block_size:
                self._uncommitted.add(own)
                self._uncommitted_keys.add(key)
            if kept:
                self._allocator.free([own])
        elif kept:
            self._merges.append(Merge(sequence, index, own))
        return held

    def num_merged(self, sequences: Collection[SequenceState]) -> int:
        """Blocks of their own that :meth:`uncache_sequences` would give back to these sequences."""
        return sum(merge.sequence in sequences for merge in self._merges)

    def uncache_sequences(self, sequences: Collection[SequenceState]) -> list[Merge]:
        """Uncache what was cached for sequences that will not be computed in this step.

        Returns the merges to be undone, with a reference to each own block: those of the sequences
        themselves, and those of others with blocks that will not be filled.
        """
        blocks = [block for s in sequences for block in self._cached.pop(s.id, ())]
        self.uncache(blocks)
        undone = [
            merge
            for merge in self._merges
            if merge.sequence in sequences or merge.sequence.table.blocks[merge.index] in blocks
        ]
        for merge in undone:
            self._merges.remove(merge)
        return undone

    def uncache(self, blocks: Collection[BlockId]) -> None:
        """Make cached blocks unfindable: they are not filled after all."""
        if blocks and self._finder is not None:
            self._finder.uncache(blocks)
            self._uncommitted.difference_update(blocks)
            for block in blocks:
                if block in self.content:
                    self._lose(block)

    def hand_out(self, blocks: Iterable[BlockId]) -> None:
        """Forget the contents of blocks that were handed out."""
        for block in blocks:
            if block in self.content:
                self.evicted.append(block)
                self._lose(block)

    def _lose(self, block: BlockId) -> None:
        del self.content[block]
        if self.listener is not None:
            self.listener(block, None)

    def commit(self) -> list[BlockId]:
        """The step is planned, and no chunk is withdrawn any more; return what it cached."""
        if not (self._cached or self._uncommitted_keys or self._merges):
            return []
        cached = [block for blocks in self._cached.values() for block in blocks]
        self._allocator.free([merge.own for merge in self._merges])
        self._cached.clear()
        self._uncommitted.clear()
        self._uncommitted_keys.clear()
        self._merges.clear()
        return cached
