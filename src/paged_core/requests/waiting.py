"""The work that a request would be if it started now."""

from __future__ import annotations

from paged_core.cache.kv_cache import KVCache
from paged_core.sequence import SequenceGroup, Status


def uncached_tokens(group: SequenceGroup, kv_cache: KVCache) -> int:
    """Tokens of a group's live sequences that are left to compute.

    Of a group that waits, those that a prefix hit would leave now, and at least one of each
    sequence; nothing is referenced. It costs a look-up of each sequence.
    """
    if group.status is not Status.WAITING:
        return sum(sequence.num_tokens - sequence.num_computed for sequence in group.live)
    total = sum(sequence.num_tokens for sequence in group.live)
    if not kv_cache.caches_prefixes:
        return total
    hits = [kv_cache.lookup(each, each.num_tokens - 1) for each in group.live]
    return total - sum(len(hit.blocks) for hit in hits) * kv_cache.block_size
