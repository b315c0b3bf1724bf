"""The only code that moves blocks between sequences, the allocator and host memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from paged_core.block_key import BlockKey, extend_keys
from paged_core.cache_changes import CacheChanges, Merge
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.allocator import BlockAllocator, SupportsPrefixCache, SupportsReservation
from paged_core.sequence import SequenceGroup, SequenceState, Status


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What the prefix cache has for the leading tokens of a sequence."""

    blocks: Sequence[BlockId] = ()
    """Blocks that hold them; nothing is referenced yet."""
    num_settled: int = 0
    """Leading blocks that an earlier step filled; the rest are only being filled in this one."""
    num_idle: int = 0
    """Those among the blocks that nobody references: sharing them takes them from the free ones."""


class KVCache:
    """Block tables and everything that may be done to them.

    Schedulers call it while they plan a step, the engine when it applies one. Every change is
    recorded for the executor; :meth:`take_changes` hands the record over once a step is planned.
    An operation that raises has changed nothing.
    """

    def __init__(
        self,
        allocator: BlockAllocator,
        *,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        watermark: float = 0.0,
        notes_steps: bool = False,
    ) -> None:
        self.block_size = block_size
        self.num_pinned = 0
        """Blocks that belong to pinned prefixes, now or as soon as they are computed."""
        self._num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.watermark_blocks = int(watermark * num_blocks)
        """Blocks that admission leaves free."""
        self._allocator = allocator
        self._prefixes = allocator if isinstance(allocator, SupportsPrefixCache) else None
        self._reservations = allocator if isinstance(allocator, SupportsReservation) else None
        self.notes_steps = notes_steps
        """Whether the allocator is told the last step of a sequence that gives its blocks back."""
        self._free_host = [BlockId(block) for block in reversed(range(num_host_blocks))]
        self._changes = CacheChanges()
        self._unsettled: set[BlockId] = set()
        self._promised: set[BlockKey] = set()

    # ------------------------------------------------------------------ what there is

    @property
    def num_blocks(self) -> int:
        """Device blocks that sequences can have between them: those of pins are not theirs."""
        return self._num_blocks - self.num_pinned

    @property
    def num_free(self) -> int:
        """Device blocks that nobody references, cached or not."""
        return self._allocator.num_free

    @property
    def num_free_host(self) -> int:
        """Host blocks that hold nothing."""
        return len(self._free_host)

    @property
    def caches_prefixes(self) -> bool:
        """Whether the allocator finds blocks by what they hold."""
        return self._prefixes is not None

    @property
    def reserves_runs(self) -> bool:
        """Whether each sequence gets one run of blocks for its whole life, and shares none."""
        return self._reservations is not None

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens take."""
        return -(-num_tokens // self.block_size)

    def distinct_blocks(self, group: SequenceGroup) -> int:
        """Device or host blocks that the live sequences of ``group`` hold between them."""
        live = group.live
        if len(live) == 1:
            return len(live[0].table.blocks) or len(live[0].table.host_blocks)
        device = {block for sequence in live for block in sequence.table.blocks}
        return len(device) or len({b for sequence in live for b in sequence.table.host_blocks})

    def blocks_to_start(self, num_tokens: int, max_num_tokens: int) -> int:
        """Blocks that a sequence is given at first that has ``num_tokens`` and may get longer."""
        if self._reservations is not None:
            return self._reservations.blocks_to_reserve(num_tokens, max_num_tokens)
        return self.blocks_for(num_tokens)

    def can_start(self, sequence: SequenceState) -> bool:
        """Whether the allocator has the run that it would set aside for ``sequence``, if it does.

        Counting free blocks is up to whoever admits; this is about where they lie.
        """
        if self._reservations is None:
            return True
        count = self.blocks_to_start(len(sequence.tokens), sequence.group.max_length)
        return self._reservations.can_reserve(count)

    # ------------------------------------------------------------------ growing

    def lookup(
        self, sequence: SequenceState, num_tokens: int, *, settled: bool = False
    ) -> PrefixHit:
        """Find cached blocks for the first ``num_tokens`` tokens, whole blocks, to the first miss.

        With ``settled``, only such as an earlier step has filled. Nothing is referenced: hand the
        result, or part of it, to :meth:`admit` before the next change. Who shares blocks that are
        not settled counts on the chunk that fills them: after that, no group that this step
        computes may be preempted.
        """
        prefixes = self._prefixes
        count = num_tokens // self.block_size
        if prefixes is None or count == 0 or not self._finds_prefixes(sequence.group):
            return _NO_HIT
        keys = self._keys(sequence, count)
        blocks = prefixes.look_up(keys if len(keys) == count else keys[:count])
        if not blocks:
            return _NO_HIT
        if len(sequence.group.live) > 1:
            blocks = self._prefer_siblings(sequence, blocks)
        unsettled, num_settled = self._unsettled, len(blocks)
        if unsettled:
            num_settled = next((i for i, b in enumerate(blocks) if b in unsettled), len(blocks))
        if settled:
            blocks = blocks[:num_settled]
        ref_count = self._allocator.ref_count
        return PrefixHit(blocks, num_settled, sum(not ref_count(block) for block in blocks))

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
        shared = list(hit.blocks) if hit else []
        end = num_skipped + num_tokens
        missing = self.blocks_for(end) - len(shared)
        idle = hit.num_idle if hit else 0
        if missing + idle > self._allocator.num_free:
            raise OutOfBlocks(
                f"{missing + idle} blocks are needed and {self._allocator.num_free} are free"
            )
        table = sequence.table
        if self._reservations is not None:
            run = self.blocks_to_start(len(sequence.tokens), sequence.group.max_length)
            table.blocks = self._reservations.reserve(run)
        else:
            self._allocator.share(shared)
            table.blocks = shared + self._allocator.allocate(missing)
        table.num_published = len(shared)
        sequence.num_scheduled = sequence.num_computed = num_skipped
        sequence.capacity = len(table.blocks) * self.block_size
        sequence.group.status = Status.RUNNING
        self._changes.added[sequence.id] = sequence
        if self._prefixes is not None:
            self._publish(sequence, end // self.block_size)

    def reserve(self, sequence: SequenceState, num_tokens: int) -> None:
        """Make room for the next ``num_tokens`` tokens of a sequence that holds blocks.

        A last block that is shared with a forked sequence is copied first; blocks that these
        tokens fill are published. Need not be called while the sequence stays below its
        ``capacity``.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        table, size = sequence.table, self.block_size
        start = sequence.num_scheduled
        end = start + num_tokens
        blocks = table.blocks
        missing = -(-end // size) - len(blocks)
        copied, tail = -1, start // size
        if (
            table.num_published <= tail < len(blocks)
            and self._allocator.ref_count(blocks[tail]) > 1
        ):
            copied = tail
        if missing > 0 or copied >= 0:
            fresh = self._allocator.allocate(max(missing, 0) + (copied >= 0))
            if copied >= 0:
                self._copy_on_write(sequence, copied, fresh.pop())
            for block in fresh:
                self._edit(sequence, len(blocks), block)
                blocks.append(block)
        sequence.capacity = len(blocks) * size
        if self._prefixes is not None and end // size > table.num_published:
            self._publish(sequence, end // size)

    def blocks_to_grow(self, group: SequenceGroup, num_tokens: int = 1) -> int:
        """Blocks that :meth:`reserve` takes to give each live sequence ``num_tokens`` more tokens.

        For a group that is swapped out: what that takes once it is back.
        """
        size, needed = self.block_size, 0
        sharers: Counter[BlockId] = Counter()
        for sequence in group.live:
            start, table = sequence.num_scheduled, sequence.table
            blocks = table.blocks or table.host_blocks
            needed += max(0, -(-(start + num_tokens) // size) - len(blocks))
            if table.num_published <= start // size < len(blocks):
                sharers[blocks[start // size]] += 1
        for tail, count in sharers.items():
            swapped = group.status is Status.SWAPPED
            needed += min(count, (count if swapped else self._allocator.ref_count(tail)) - 1)
        return needed

    def blocks_to_restore(self, group: SequenceGroup) -> int:
        """Blocks that a group takes if its sequences are computed anew, each before the next.

        Where prefixes are cached, a sequence shares what those before it have in common with it.
        """
        size, live = self.block_size, group.live
        lengths = [len(sequence.tokens) for sequence in live]
        needed = sum(self.blocks_for(length) for length in lengths)
        if len(live) == 1 or not self._finds_prefixes(group):
            return needed
        known: set[BlockKey] = set()
        for sequence, length in zip(live, lengths, strict=True):
            keys = self._keys(sequence, length // size)
            shared = takewhile(known.__contains__, keys[: (length - 1) // size])
            needed -= sum(1 for _ in shared)
            known.update(keys[: length // size])
        return needed

    def fork(self, parent: SequenceState, child: SequenceState) -> None:
        """Let ``child``, which holds nothing, share all blocks of ``parent``.

        The child takes over how far the parent is computed; the first of them to write into a
        partly filled last block gets a copy of it.
        """
        ours, theirs = child.table, parent.table
        self._allocator.share(theirs.blocks)
        ours.blocks = list(theirs.blocks)
        ours.keys = list(theirs.keys)
        ours.num_published = theirs.num_published
        child.num_computed = parent.num_computed
        child.num_scheduled = parent.num_scheduled
        child.capacity = parent.capacity = 0
        self._changes.added[child.id] = child

    def introduce_again(self, sequence: SequenceState) -> None:
        """The executor's copy of a sequence is out of date: let it forget and learn it anew."""
        if sequence.id not in self._changes.added:
            self._changes.removed.append(sequence.id)
            self._changes.added[sequence.id] = sequence

    def step_back(self, sequence: SequenceState) -> None:
        """Have the last token of a sequence, which is computed, computed once more."""
        sequence.num_computed = sequence.num_scheduled = len(sequence.tokens) - 1
        self.introduce_again(sequence)

    # ------------------------------------------------------------------ giving back

    def release(self, sequence: SequenceState) -> None:
        """Take all blocks from a sequence, last one first, and forget how far it was computed.

        What a step still being planned had published for it is retracted: it will not be computed.
        """
        table, changes = sequence.table, self._changes
        self._undo_merges([merge for merge in changes.merges if merge.sequence is sequence])
        self._withdraw(changes.published.pop(sequence.id, ()))
        if table.host_blocks:
            others = [other for other in sequence.group.live if other is not sequence]
            kept = {block for other in others for block in other.table.host_blocks}
            self._free_host.extend(set(table.host_blocks) - kept)
            table.host_blocks = []
        if table.blocks:
            self._forget(sequence)
            self._free(table.blocks)
            table.blocks = []
        table.num_published = 0
        sequence.num_computed = sequence.num_scheduled = sequence.capacity = 0

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
        """Give back what :meth:`hold` returned."""
        self._free(blocks)

    # ------------------------------------------------------------------ swapping

    def swap_out(self, group: SequenceGroup) -> None:
        """Move all blocks of ``group`` to the host; sequences that share a block go on sharing it.

        Raises:
            OutOfBlocks: the host has too few, or the group came back in this very step; nothing has
                changed.
        """
        changes = self._changes
        if changes.swap_in and any(
            block in changes.swap_in for sequence in group.live for block in sequence.table.blocks
        ):
            raise OutOfBlocks("its blocks are on their way back from the host")
        merges = [merge for merge in changes.merges if merge.sequence.group is group]
        needed = self.distinct_blocks(group) + len(merges)
        if needed > len(self._free_host):
            raise OutOfBlocks(f"{needed} host blocks are needed and {len(self._free_host)} free")
        self._undo_merges(merges)
        moved: dict[BlockId, BlockId] = {}
        for sequence in group.live:
            self._withdraw(changes.published.pop(sequence.id, ()))
            table = sequence.table
            for block in table.blocks:
                if block not in moved:
                    moved[block] = self._to_host(block)
            table.host_blocks = [moved[block] for block in table.blocks]
        for sequence in group.live:
            self._forget(sequence)
            self._free(sequence.table.blocks)
            sequence.table.blocks = []
            sequence.table.num_published = 0
            sequence.num_scheduled = sequence.num_computed
            sequence.capacity = 0

    def swap_in(self, group: SequenceGroup) -> None:
        """Move all blocks of ``group`` back to the device; what is still cached there stays put.

        Raises:
            OutOfBlocks: the device has too few free; nothing has changed.
        """
        found = self._still_cached(group)
        held = [block for sequence in group.live for block in sequence.table.host_blocks]
        absent = [block for block in dict.fromkeys(held) if block not in found]
        idle = {block for block in found.values() if not self._allocator.ref_count(block)}
        if len(absent) + len(idle) > self._allocator.num_free:
            raise OutOfBlocks(
                f"{len(absent) + len(idle)} blocks are needed and {self._allocator.num_free} are "
                "free"
            )
        self._allocator.share(found.values())
        fresh = dict(zip(absent, self._allocator.allocate(len(absent)), strict=True))
        moved = found | fresh
        unclaimed = set(moved)
        for sequence in group.live:
            table = sequence.table
            self._allocator.share(moved[b] for b in table.host_blocks if b not in unclaimed)
            unclaimed.difference_update(table.host_blocks)
            table.num_published = sum(block in found for block in table.host_blocks)
            table.blocks = [moved[block] for block in table.host_blocks]
            table.host_blocks = []
            sequence.capacity = 0  # a shared last block is only found out about by reserve()
            if table.blocks:
                self._changes.added[sequence.id] = sequence
        self._drop_host_blocks(found)
        for source, target in fresh.items():
            self._changes.swap_in[target] = source
        if self._prefixes is not None:
            for sequence in group.live:
                self._publish(sequence, sequence.num_computed // self.block_size, settled=True)

    def _still_cached(self, group: SequenceGroup) -> dict[BlockId, BlockId]:
        """Leading host blocks of a group, to device blocks that hold the same."""
        found: dict[BlockId, BlockId] = {}
        if self._prefixes is not None:
            for sequence in group.live:
                count = sequence.num_computed // self.block_size
                hits = self._prefixes.look_up(self._keys(sequence, count)[:count])
                found.update(zip(sequence.table.host_blocks, hits, strict=False))
        return found

    def _drop_host_blocks(self, blocks: Collection[BlockId]) -> None:
        """What these host blocks hold, or were to receive in this step, is not needed."""
        changes = self._changes
        changes.swap_out = [pair for pair in changes.swap_out if pair[1] not in blocks]
        self._free_host.extend(blocks)

    # ------------------------------------------------------------------ steps

    def take_changes(self) -> CacheChanges:
        """Hand over what changed since the last call; the step that they belong to is planned."""
        changes, self._changes = self._changes, CacheChanges()
        self._free_host.extend(changes.swap_in.values())
        self._allocator.free([merge.own for merge in changes.merges])
        self._unsettled.clear()
        self._promised.clear()
        return changes

    @property
    def has_transfers(self) -> bool:
        """Whether blocks wait to be moved even if no sequence is computed."""
        changes = self._changes
        return bool(changes.swap_out or changes.swap_in or changes.copies)

    def retract(self, changes: CacheChanges) -> None:
        """The step of these changes failed: unpublish all that it would have filled.

        Who was to be forgotten will be named again; the sequences concerned must be released.
        """
        for blocks in changes.published.values():
            self._retract(blocks)
        self._changes.removed.extend(changes.removed)

    # ------------------------------------------------------------------ inside

    def _finds_prefixes(self, group: SequenceGroup) -> bool:
        """Whether cached blocks may be used: what is not computed has no logits to report."""
        return self._prefixes is not None and group.request.sampling.prompt_logprobs is None

    def _keys(self, sequence: SequenceState, count: int) -> list[BlockKey]:
        keys = sequence.table.keys
        if len(keys) < count:
            extra = sequence.group.request.key_extra
            extend_keys(keys, sequence.tokens, self.block_size, extra, count)
        return keys

    def _prefer_siblings(self, sequence: SequenceState, found: Sequence[BlockId]) -> list[BlockId]:
        """Replace found blocks by equal ones that the group holds, which take none of the free."""
        found, keys = list(found), sequence.table.keys
        for sibling in sequence.group.live:
            table = sibling.table
            for index in range(min(table.num_published, len(found))):
                if table.keys[index] != keys[index]:
                    break
                found[index] = table.blocks[index]
        return found

    def _publish(self, sequence: SequenceState, count: int, *, settled: bool = False) -> None:
        """Make the first ``count`` blocks findable, as far as they are not yet."""
        assert self._prefixes is not None
        table = sequence.table
        if count <= table.num_published:
            return
        self._keys(sequence, count)
        for index in range(table.num_published, count):
            self._publish_block(sequence, index, settled=settled)
        table.num_published = count

    def _publish_block(self, sequence: SequenceState, index: int, *, settled: bool = False) -> None:
        """Make one block findable; it may give way to an equal one that was there before.

        If that one is only being filled in this step, or ours is still to be copied from, ours is
        kept until the step is planned.
        """
        assert self._prefixes is not None
        table, changes = sequence.table, self._changes
        block, key = table.blocks[index], table.keys[index]
        keep = key in self._promised or block in changes.copies.values()
        if keep:
            self._allocator.share([block])
        held = self._prefixes.publish(block, key)
        if held == block:
            changes.published[sequence.id].append(block)
            if not settled:
                self._unsettled.add(block)
                self._promised.add(key)
            if keep:
                self._allocator.free([block])
            return
        table.blocks[index] = held
        self._edit(sequence, index, held)
        if keep:
            changes.merges.append(Merge(sequence, index, block))
        else:
            self._drop_pending_writes([block])

    def _undo_merges(self, merges: Sequence[Merge]) -> None:
        """Give sequences back the blocks that gave way in this step."""
        for merge in merges:
            self._changes.merges.remove(merge)
            table = merge.sequence.table
            held, table.blocks[merge.index] = table.blocks[merge.index], merge.own
            self._free([held])
            self._edit(merge.sequence, merge.index, merge.own)

    def _withdraw(self, blocks: Sequence[BlockId]) -> None:
        """Unpublish blocks that will not be filled after all; who relied on them gets its own."""
        if not blocks:
            return
        self._retract(blocks)
        merges = [m for m in self._changes.merges if m.sequence.table.blocks[m.index] in blocks]
        self._undo_merges(merges)
        for merge in merges:
            self._publish_block(merge.sequence, merge.index)

    def _retract(self, blocks: Sequence[BlockId]) -> None:
        if blocks and self._prefixes is not None:
            self._prefixes.retract(blocks)
            self._unsettled.difference_update(blocks)

    def _copy_on_write(self, sequence: SequenceState, index: int, target: BlockId) -> None:
        table, changes = sequence.table, self._changes
        source = table.blocks[index]
        changes.copies[target] = changes.copies.get(source, source)
        table.blocks[index] = target
        self._allocator.free([source])
        self._edit(sequence, index, target)

    def _edit(self, sequence: SequenceState, index: int, block: BlockId) -> None:
        """Tell the executor of one table entry, unless it will be sent the whole table."""
        changes = self._changes
        if sequence.id not in changes.added:
            changes.edit_ids.append(sequence.id)
            changes.edit_indices.append(index)
            changes.edit_blocks.append(block)

    def _forget(self, sequence: SequenceState) -> None:
        """A sequence is about to give its blocks back: the executor need not know it any more."""
        changes = self._changes
        if self.notes_steps:
            self._allocator.note_step(sequence.table.blocks, sequence.last_step)
        if changes.added.pop(sequence.id, None) is not None:
            return
        changes.removed.append(sequence.id)
        if sequence.id in changes.edit_ids:
            kept = [i for i, known in enumerate(changes.edit_ids) if known != sequence.id]
            changes.edit_ids = [changes.edit_ids[i] for i in kept]
            changes.edit_indices = [changes.edit_indices[i] for i in kept]
            changes.edit_blocks = [changes.edit_blocks[i] for i in kept]

    def _free(self, blocks: Sequence[BlockId]) -> None:
        self._allocator.free(reversed(blocks))
        self._drop_pending_writes(blocks)

    def _drop_pending_writes(self, blocks: Iterable[BlockId]) -> None:
        """A block that was given back may be handed out again: nothing planned may write to it."""
        changes = self._changes
        if changes.copies or changes.swap_in:
            for block in blocks:
                if self._allocator.ref_count(block) == 0:
                    changes.copies.pop(block, None)
                    if block in changes.swap_in:
                        self._free_host.append(changes.swap_in.pop(block))

    def _to_host(self, block: BlockId) -> BlockId:
        """Plan to save one block; one that this step was to fill first is saved from its source."""
        changes = self._changes
        target = self._free_host.pop()
        changes.swap_out.append((changes.copies.get(block, block), target))
        return target


_NO_HIT = PrefixHit()
