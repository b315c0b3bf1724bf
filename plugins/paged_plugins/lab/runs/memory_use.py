"""What the slots of a cache hold at one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paged_core.ids import BlockId
from paged_core.kv_cache import KVCache
from paged_core.sequence import SequenceGroup


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Slots by what they are used for, as in figure 2 of the PagedAttention paper (Kwon et al.,
    SOSP 2023); the rest can be used by requests that wait."""

    held: int
    """Hold the state of a token; a block that several sequences share counts once."""
    reserved: int
    """Of held blocks: will hold one later."""
    internal: int
    """Of held blocks: never will (internal fragmentation)."""
    external: int
    """Free, but in runs too short for the request that waits longest (external fragmentation)."""
    idle: int
    """Free, but findable by their content until they are evicted."""


def memory_use(
    kv_cache: KVCache, running: Iterable[SequenceGroup], waiting: SequenceGroup | None
) -> MemoryUse:
    """Look at the blocks of the running requests that are not full; all others in use are.

    Args:
        running: all requests that hold blocks.
        waiting: the request that waits longest.
    """
    size = kv_cache.block_size
    tails: dict[BlockId, tuple[int, int]] = {}
    for group in running:
        last = group.max_length - 1  # the state of the last token is never computed
        for sequence in group.live:
            table, held = sequence.table, sequence.num_computed
            for index in range(max(held // size, table.num_published), len(table.blocks)):
                block, start = table.blocks[index], index * size
                now = max(0, held - start)
                later = max(now, min(size, last - start))
                if block in tails:  # shared since a fork
                    now, later = max(now, tails[block][0]), max(later, tails[block][1])
                tails[block] = now, later
    full = kv_cache.num_blocks - kv_cache.num_free - len(tails)
    held = sum([now for now, _ in tails.values()])
    with_reserved = sum([later for _, later in tails.values()])
    blocked = waiting is not None and not kv_cache.can_start(waiting.live[0])
    return MemoryUse(
        held=size * full + held,
        reserved=with_reserved - held,
        internal=size * len(tails) - with_reserved,
        external=size * kv_cache.num_free if blocked else 0,
        idle=size * max(0, kv_cache.num_cached - full),
    )
