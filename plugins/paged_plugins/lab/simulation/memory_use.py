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
    """Look at all blocks of the running requests.

    Args:
        waiting: the request that waits longest.
    """
    size = kv_cache.block_size
    full: set[BlockId] = set()
    published: set[BlockId] = set()
    tails: dict[BlockId, tuple[int, int]] = {}
    for group in running:
        last = group.max_length - 1  # the state of the last token is never computed
        for sequence in group.live:
            blocks, held = sequence.table.blocks, sequence.num_computed
            num_full = held // size
            full.update(blocks[:num_full])
            published.update(blocks[: sequence.table.num_published])
            for index in range(num_full, len(blocks)):
                start = index * size
                now, later = held - start, min(size, last - start)
                known = tails.get(blocks[index], (0, 0))
                tails[blocks[index]] = (max(0, now, known[0]), max(0, now, later, known[1]))
    for block in tails.keys() & full:
        del tails[block]
    held = size * len(full) + sum(now for now, _ in tails.values())
    reserved = sum(later - now for now, later in tails.values())
    internal = sum(size - later for _, later in tails.values())
    blocked = waiting is not None and not kv_cache.can_start(waiting.live[0])
    external = size * kv_cache.num_free if blocked else 0
    idle = size * (kv_cache.num_cached - len(published))
    return MemoryUse(held, reserved, internal, external, idle)
