"""The only code that moves blocks between sequences, the allocator and host memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence, Set

from paged_core.cache.changes import CacheChanges
from paged_core.cache.prefix_cache import CacheListener, PrefixCache, PrefixHit
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId, SeqId
from paged_core.interfaces.allocator import (
    BlockAllocator,
    SupportsLastStep,
    SupportsPrefixCache,
    SupportsReservation,
)
from paged_core.sequence import SequenceGroup, SequenceState, Status

__all__ = ["KVCache", "PrefixHit"]


class KVCache:
    """Block tables and every operation on them.

    Schedulers call it while they plan a step, the engine when it applies one. Every change is
    recorded for the executor; :meth:`take_changes` hands the record over once a step is planned.
    An operation that raises has changed nothing.

    Steps run in the order in which they are planned. So what a step in flight computes
    (``num_scheduled``) is in the cache by the time the step being planned runs.

    Args:
        watermark: share of the device blocks that admission leaves free.
    """

    def __init__(
        self,
        allocator: BlockAllocator,
        *,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        watermark: float = 0.0,
    ) -> None:
        self.block_size = block_size
        self.num_pinned = 0
        """Blocks that belong to pinned prefixes, now or as soon as they are computed."""
        self._num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.watermark_blocks = int(watermark * num_blocks)
        """Blocks that admission leaves free."""
        self._changes = CacheChanges()
        self._listener: CacheListener | None = None
        self.reset(allocator)

    def reset(self, allocator: BlockAllocator) -> None:
        """Forget all that blocks hold and what was planned with them; ``allocator`` is a new one.

        Nothing may hold blocks any more. The removed sequences will still be named.
        """
        self._allocator = allocator
        self._runs = allocator if isinstance(allocator, SupportsReservation) else None
        self._hears = allocator if isinstance(allocator, SupportsLastStep) else None
        if self._listener is not None:
            self._listener(None, None)
        self.caches_prefixes = isinstance(allocator, SupportsPrefixCache)
        """True if the allocator finds blocks by their content."""
        self.reserves_runs = self._runs is not None
        """True if each sequence gets one run of blocks for its whole life, and shares none."""
        self._prefix_cache = PrefixCache(allocator, self.block_size, self._listener)
        self._free_host = [BlockId(block) for block in reversed(range(self.num_host_blocks))]
        self._changes = CacheChanges(removed=self._changes.removed)

    def watch(self, listener: CacheListener) -> None:
        """Have a listener told of each change of what the prefix cache finds, as it happens."""
        self._listener = self._prefix_cache.listener = listener

    def forget(self, sequence_ids: Iterable[SeqId]) -> None:
        """Let the executor drop its copies of these sequences, if it has any."""
        self._changes.removed.extend(sequence_ids)

    # ------------------------------------------------------------------ what there is

    @property
    def num_blocks(self) -> int:
        """Device blocks for sequences; those of pinned prefixes are not counted."""
        return self._num_blocks - self.num_pinned

    @property
    def num_free(self) -> int:
        """Unreferenced device blocks, cached or not."""
        return self._allocator.num_free

    @property
    def num_cached(self) -> int:
        """Device blocks whose content the prefix cache finds, referenced or not."""
        return len(self._prefix_cache.content)

    @property
    def num_free_host(self) -> int:
        """Host blocks that hold nothing."""
        return len(self._free_host)

    def block_use(self) -> tuple[Sequence[int], Set[BlockId]]:
        """Return how often each device block is referenced, and which ones the prefix cache finds,
        which is no copy."""
        counts = [self._allocator.ref_count(BlockId(each)) for each in range(self._num_blocks)]
        return counts, self._prefix_cache.content.keys()

    @property
    def newly_added(self) -> Set[SeqId]:
        """Sequences that the step being planned makes known to the executor."""
        return self._changes.added.keys()

    @property
    def has_transfers(self) -> bool:
        """True if blocks are to be moved, even if no sequence is computed."""
        changes = self._changes
        return bool(changes.swap_out or changes.swap_in or changes.copies)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens take."""
        return -(-num_tokens // self.block_size)

    def distinct_blocks(self, group: SequenceGroup) -> int:
        """Device or host blocks that the live sequences of ``group`` hold, shared ones once."""
        held = [sequence.table.blocks or sequence.table.host_blocks for sequence in group.live]
        return len(held[0]) if len(held) == 1 else len(set().union(*held))

    def blocks_to_start(self, num_tokens: int, max_num_tokens: int) -> int:
        """Blocks that a sequence of ``num_tokens`` tokens, which may get longer, gets at first."""
        if self._runs is not None:
            return self._runs.blocks_to_reserve(num_tokens, max_num_tokens)
        return self.blocks_for(num_tokens)

    def can_start(self, sequence: SequenceState) -> bool:
        """Return whether an allocator that reserves runs has one for ``sequence``; others can.

        Free blocks are counted by the scheduler; this is about adjacent ones.
        """
        if self._runs is None:
            return True
        count = self.blocks_to_start(sequence.num_tokens, sequence.group.max_length)
        return self._runs.can_reserve(count)

    def blocks_to_grow(self, group: SequenceGroup, num_tokens: int = 1) -> int:
        """Blocks that :meth:`reserve` takes to give each live sequence ``num_tokens`` more tokens.

        For a group that is swapped out: what that takes once it is swapped in.
        """
        size, needed = self.block_size, 0
        sharers: Counter[BlockId] = Counter()
        for sequence in group.live:
            start, table = sequence.num_scheduled, sequence.table
            blocks = table.blocks or table.host_blocks
            needed += max(0, -(-(start + num_tokens) // size) - len(blocks))
            if table.num_cached <= start // size < len(blocks):
                sharers[blocks[start // size]] += 1
        for tail, count in sharers.items():
            swapped = group.status is Status.SWAPPED
            needed += min(count, (count if swapped else self._allocator.ref_count(tail)) - 1)
        return needed

    def blocks_to_restore(self, group: SequenceGroup) -> int:
        """Blocks that the sequences of a group take if they are recomputed, one after the other.

        Where prefixes are cached, a sequence shares those that it has in common with earlier ones.
        """
        live = group.live
        needed = sum(self.blocks_for(sequence.num_tokens) for sequence in live)
        if len(live) > 1 and _may_share(group):
            needed -= self._prefix_cache.num_in_common(live)
        return needed

    # ------------------------------------------------------------------ allocating

    def lookup(
        self,
        sequence: SequenceState,
        num_tokens: int,
        *,
        committed: bool = False,
    ) -> PrefixHit:
        """Find cached blocks for the first ``num_tokens`` tokens, whole blocks, to the first miss;
        and say what is free.

        With ``committed``, only those that an earlier step filled. Nothing is referenced: hand the
        result, or part of it, to :meth:`admit` before the next change. A sequence that shares
        blocks that are not committed relies on the chunk that fills them: after that, no group in
        this step's batch may be preempted.
        """
        prefix_cache, blocks = self._prefix_cache, list[BlockId]()
        if _may_share(sequence.group):
            blocks = prefix_cache.look_up(sequence, num_tokens // self.block_size)
        num_committed = prefix_cache.num_committed(blocks)
        if committed:
            blocks = blocks[:num_committed]
        idle = self._num_idle(blocks) if blocks else 0
        has_run = self._runs is None or self.can_start(sequence)
        return PrefixHit(blocks, num_committed, idle, self.num_free, has_run)

    def admit(
        self,
        sequence: SequenceState,
        num_tokens: int,
        hit: PrefixHit | None = None,
        num_skipped: int = 0,
    ) -> None:
        """Give a sequence that holds no blocks the blocks for its first tokens; its group runs.

        Args:
            num_tokens: to be computed in this step, after those skipped.
            hit: cached blocks to share, the rest is fresh; at most what the tokens take.
            num_skipped: leading tokens, all in shared blocks, that need not be computed.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        hit = hit or PrefixHit(num_free=self.num_free)
        shared, end = list(hit.blocks), num_skipped + num_tokens
        missing = self.blocks_for(end) - len(shared)
        self._check_free(missing + hit.num_idle, hit.num_free)
        table = sequence.table
        if self.reserves_runs:
            run = self.blocks_to_start(sequence.num_tokens, sequence.group.max_length)
            table.blocks = self._allocate(run)
        else:
            if shared:
                self._allocator.share(shared)
            table.blocks = shared + self._allocate(missing)
        if shared:
            self._changes.hits[sequence.id] = shared
        table.num_cached = len(shared)
        sequence.num_scheduled = sequence.num_computed = num_skipped
        sequence.capacity = len(table.blocks) * self.block_size
        sequence.group.status = Status.RUNNING
        self._changes.added[sequence.id] = sequence
        self._cache_blocks(sequence, end // self.block_size)

    def reserve(self, sequence: SequenceState, num_tokens: int) -> None:
        """Make room for the next ``num_tokens`` tokens of a sequence that holds blocks.

        A last block that is shared with a forked sequence is copied first. Blocks that these tokens
        fill are cached, and those filled before whose tokens were not known then. Need not be
        called while the sequence stays below its ``capacity``.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        table, size = sequence.table, self.block_size
        blocks, tail = table.blocks, sequence.num_scheduled // size
        end = sequence.num_scheduled + num_tokens
        missing = -(-end // size) - len(blocks)
        copies_tail = (
            table.num_cached <= tail < len(blocks) and self._allocator.ref_count(blocks[tail]) > 1
        )
        if missing > 0 or copies_tail:
            fresh = self._allocate(max(missing, 0) + copies_tail)
            if copies_tail:
                self._copy_on_write(sequence, tail, fresh.pop())
            for block in fresh:
                self._changes.edit(sequence, len(blocks), block)
                blocks.append(block)
        sequence.capacity = len(blocks) * size
        if self.caches_prefixes and end // size > table.num_cached:
            self._cache_blocks(sequence, end // size)

    def fork(self, parent: SequenceState, child: SequenceState) -> None:
        """Let ``child``, which holds nothing, share the blocks of ``parent``, whose tokens it has.

        The child takes over how far the parent is computed; the first of them to write into a
        partly filled last block gets a copy of it. If the parent is being recomputed, since it was
        preempted, the child shares nothing and is recomputed too.
        """
        if parent.num_scheduled < len(child.tokens) - 1:
            return
        ours, theirs = child.table, parent.table
        self._allocator.share(theirs.blocks)
        ours.blocks, ours.host_blocks = list(theirs.blocks), list(theirs.host_blocks)
        ours.keys = list(theirs.keys)
        ours.num_cached = theirs.num_cached
        child.num_computed = parent.num_computed
        child.num_scheduled = parent.num_scheduled
        child.capacity = parent.capacity = 0
        if ours.blocks:
            self._changes.added[child.id] = child

    def send_again(self, sequence: SequenceState) -> None:
        """Send a sequence to the executor anew, if it has a copy: that is out of date."""
        if sequence.table.blocks:
            self._changes.send_again(sequence)

    def step_back(self, sequence: SequenceState) -> None:
        """Have the last token of a sequence computed once more, if it is computed."""
        sequence.num_scheduled = min(sequence.num_scheduled, sequence.num_tokens - 1)
        sequence.num_computed = min(sequence.num_computed, sequence.num_scheduled)
        self.send_again(sequence)

    # ------------------------------------------------------------------ releasing

    def release(self, sequence: SequenceState) -> None:
        """Take all blocks from a sequence, last one first, and forget how far it was computed.

        What was cached for it in the step being planned is uncached: it will not be computed.
        """
        table = sequence.table
        self._withdraw([sequence])
        if table.host_blocks:
            others = [other for other in sequence.group.live if other is not sequence]
            kept = {block for other in others for block in other.table.host_blocks}
            self._free_host.extend(set(table.host_blocks) - kept)
            table.host_blocks = []
        self._empty(sequence)
        sequence.num_computed = sequence.num_scheduled = 0

    def release_group(self, group: SequenceGroup) -> None:
        """:meth:`release` every live sequence of ``group``."""
        for sequence in group.live:
            self.release(sequence)

    def hold(self, sequence: SequenceState, count: int) -> list[BlockId]:
        """Reference the first ``count`` blocks of a sequence, for longer than it lives."""
        blocks = sequence.table.blocks[:count]
        self._allocator.share(blocks)
        return blocks

    def let_go(self, blocks: Sequence[BlockId]) -> None:
        """Drop the references that :meth:`hold` took."""
        self._free(blocks)

    # ------------------------------------------------------------------ swapping

    def clear_prefixes(self) -> None:
        """Make every cached block unfindable; no sequence may hold one."""
        self._prefix_cache.uncache([BlockId(block) for block in range(self._num_blocks)])

    def swap_out(self, group: SequenceGroup) -> None:
        """Move all blocks of ``group`` to the host; sequences that share a block go on sharing it.

        Raises:
            OutOfBlocks: the host has too few, or the group is swapped in by this very step; nothing
                has changed.
        """
        swap_in = self._changes.swap_in
        if swap_in and any(b in swap_in for s in group.live for b in s.table.blocks):
            raise OutOfBlocks("its blocks are on their way back from the host")
        needed = self.distinct_blocks(group) + self._prefix_cache.num_merged(group.live)
        if needed > len(self._free_host):
            raise OutOfBlocks(f"{needed} host blocks are needed and {len(self._free_host)} free")
        self._withdraw(group.live)
        moved: dict[BlockId, BlockId] = {}
        for sequence in group.live:
            table = sequence.table
            for block in table.blocks:
                if block not in moved:
                    moved[block] = self._to_host(block)
            table.host_blocks = [moved[block] for block in table.blocks]
        for sequence in group.live:
            self._empty(sequence)

    def swap_in(self, group: SequenceGroup) -> None:
        """Move all blocks of ``group`` back to the device; those still cached there are shared.

        Raises:
            OutOfBlocks: the device has too few free; nothing has changed.
        """
        found = self._still_cached(group)
        held = [block for sequence in group.live for block in sequence.table.host_blocks]
        absent = [block for block in dict.fromkeys(held) if block not in found]
        self._check_free(len(absent) + self._num_idle(set(found.values())), self.num_free)
        self._allocator.share(found.values())
        fresh = dict(zip(absent, self._allocate(len(absent)), strict=True))
        moved = found | fresh
        unclaimed = set(moved)
        for sequence in group.live:
            table = sequence.table
            self._allocator.share([moved[b] for b in table.host_blocks if b not in unclaimed])
            unclaimed.difference_update(table.host_blocks)
            table.num_cached = sum(block in found for block in table.host_blocks)
            table.blocks = [moved[block] for block in table.host_blocks]
            table.host_blocks = []
            sequence.capacity = 0  # only reserve() finds out whether the last block is shared
            if table.blocks:
                self._changes.added[sequence.id] = sequence
        self._drop_host_blocks(found)
        self._changes.swap_in.update((target, source) for source, target in fresh.items())
        for sequence in group.live:
            self._cache_blocks(sequence, sequence.num_scheduled // self.block_size)

    # ------------------------------------------------------------------ steps

    def take_changes(self) -> CacheChanges:
        """Hand over what changed since the last call; the step that they belong to is planned."""
        prefix_cache = self._prefix_cache
        self._changes.cached = prefix_cache.commit()
        if prefix_cache.evicted:
            self._changes.evicted, prefix_cache.evicted = prefix_cache.evicted, []
        changes, self._changes = self._changes, CacheChanges()
        self._free_host.extend(changes.swap_in.values())
        return changes

    def uncache(self, changes: CacheChanges) -> None:
        """The step of these changes failed: uncache all that it would have filled.

        The removed sequences will be named again. Those in the step must be released; if further
        steps were planned after it, their changes must be uncached too.
        """
        self.forget(changes.removed)
        self._prefix_cache.uncache(changes.cached)

    # ------------------------------------------------------------------ inside

    def _num_idle(self, blocks: Collection[BlockId]) -> int:
        """Count the blocks that are not referenced."""
        ref_count = self._allocator.ref_count
        return sum(not ref_count(block) for block in blocks)

    def _check_free(self, needed: int, free: int) -> None:
        if needed > free:
            raise OutOfBlocks(f"{needed} blocks are needed and {free} are free")

    def _cache_blocks(self, sequence: SequenceState, count: int) -> None:
        """Cache the first ``count`` blocks, as far as their tokens are known."""
        table = sequence.table
        known = len(self._prefix_cache.keys(sequence, count))
        for index in range(table.num_cached, known):
            self._cache_block(sequence, index)
            table.num_cached = index + 1

    def _cache_block(self, sequence: SequenceState, index: int) -> None:
        """Cache one block; an equal one may take its place in the table."""
        own = sequence.table.blocks[index]
        copies = self._changes.copies
        is_copied = bool(copies) and own in copies.values()
        held = self._prefix_cache.cache(sequence, index, is_copied=is_copied)
        if held != own:
            self._replace(sequence, index, held)
            self._drop_pending_writes([own])

    def _withdraw(self, sequences: Collection[SequenceState]) -> None:
        """Uncache what this step was to fill for sequences, and undo the merges that rely on it."""
        merges = self._prefix_cache.uncache_sequences(sequences)
        for merge in merges:
            held = merge.sequence.table.blocks[merge.index]
            self._replace(merge.sequence, merge.index, merge.own)
            self._free([held])
        for merge in merges:
            if merge.sequence not in sequences:
                self._cache_block(merge.sequence, merge.index)

    def _copy_on_write(self, sequence: SequenceState, index: int, target: BlockId) -> None:
        source, copies = sequence.table.blocks[index], self._changes.copies
        copies[target] = copies.get(source, source)
        self._replace(sequence, index, target)
        self._allocator.free([source])

    def _replace(self, sequence: SequenceState, index: int, block: BlockId) -> None:
        """Put another block into a table; references are up to the caller."""
        sequence.table.blocks[index] = block
        self._changes.edit(sequence, index, block)

    def _empty(self, sequence: SequenceState) -> None:
        """Free the device blocks of a sequence; the executor need not know it any more."""
        table = sequence.table
        if table.blocks:
            self._changes.remove(sequence)
            self._free(table.blocks, sequence.last_step)
            table.blocks = []
        table.num_cached = sequence.capacity = 0

    def _allocate(self, count: int) -> list[BlockId]:
        """Take ``count`` blocks, adjacent ones from an allocator that reserves runs."""
        runs = self._runs
        blocks = self._allocator.allocate(count) if runs is None else runs.reserve(count)
        if self.caches_prefixes:
            self._prefix_cache.hand_out(blocks)
        return blocks

    def _free(self, blocks: Sequence[BlockId], last_step: int | None = None) -> None:
        """Drop a reference to each block, last one first; ``last_step``: of their sequence."""
        if self._hears is None or last_step is None:
            self._allocator.free(blocks[::-1])
        else:
            self._hears.release(blocks[::-1], last_step)
        self._drop_pending_writes(blocks)

    def _drop_pending_writes(self, blocks: Iterable[BlockId]) -> None:
        """A block that was freed may be allocated again: nothing planned may write to it."""
        changes = self._changes
        if changes.copies or changes.swap_in:
            for block in blocks:
                if self._allocator.ref_count(block) == 0:
                    changes.copies.pop(block, None)
                    if block in changes.swap_in:
                        self._free_host.append(changes.swap_in.pop(block))

    def _to_host(self, block: BlockId) -> BlockId:
        """Plan to save one block; one that this step was to copy to is saved from its source."""
        changes = self._changes
        target = self._free_host.pop()
        changes.swap_out.append((changes.copies.get(block, block), target))
        return target

    def _still_cached(self, group: SequenceGroup) -> dict[BlockId, BlockId]:
        """Leading host blocks of a group, to device blocks of the same content."""
        found: dict[BlockId, BlockId] = {}
        for sequence in group.live:
            hits = self._prefix_cache.look_up(sequence, sequence.num_scheduled // self.block_size)
            found.update(zip(sequence.table.host_blocks, hits, strict=False))
        return found

    def _drop_host_blocks(self, blocks: Collection[BlockId]) -> None:
        """The content of these host blocks, saved or still to be saved, is not needed."""
        changes = self._changes
        changes.swap_out = [pair for pair in changes.swap_out if pair[1] not in blocks]
        self._free_host.extend(blocks)


def _may_share(group: SequenceGroup) -> bool:
    """Return whether cached blocks may be used: what is not computed has no logits to report."""
    return group.request.sampling.prompt_logprobs is None
