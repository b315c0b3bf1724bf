"""The work that is left of a request, as far as it is known before the end."""

from __future__ import annotations

from paged_core.cache.kv_cache import KVCache
from paged_core.requests.waiting import uncached_tokens
from paged_core.sequence import SequenceGroup, Status


def num_tokens_left(group: SequenceGroup, kv_cache: KVCache) -> int:
    """Tokens that are still to be computed or generated at most, over all sequences to come.

    Those that a prefix hit would skip, if the group were admitted now, are not to be computed.
    """
    prompt_length = len(group.request.prompt)
    if not group.forked:
        left = prompt_length + group.num_seqs * (group.max_length - prompt_length)
    else:
        left = sum(group.max_length - sequence.num_computed for sequence in group.live)
    if group.status is not Status.WAITING or not kv_cache.caches_prefixes:
        return left
    length = sum(sequence.num_tokens for sequence in group.live)
    return left - length + uncached_tokens(group, kv_cache)
