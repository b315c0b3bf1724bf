"""The work that is left of a request, as far as it is known before the end."""

from __future__ import annotations

from paged_core.cache.kv_cache import KVCache
from paged_core.interfaces.length_predictor import LengthPredictor
from paged_core.requests.waiting import hit_tokens
from paged_core.sequence import SequenceGroup, Status


def learns(lengths: LengthPredictor | None) -> bool:
    """Return whether the expected length of a request may change while it waits."""
    return lengths is not None and lengths.learns


def expected_end(group: SequenceGroup, lengths: LengthPredictor | None) -> float:
    """Tokens of the longest sequence of a group at its end, as predicted, or else at most.

    One that has more tokens than were predicted is about to end.
    """
    expected = None if lengths is None else lengths.expect(group.request)
    if expected is None:
        return group.max_length
    return max(len(group.request.prompt) + expected.tokens, group.longest + 1)


def num_tokens_left(
    group: SequenceGroup, kv_cache: KVCache, lengths: LengthPredictor | None
) -> float:
    """Tokens that are still to be computed or generated, over all sequences to come.

    As many are generated as predicted, or else at most. Those that a prefix hit would skip, if the
    group were admitted now, are not to be computed.
    """
    prompt_length, end = len(group.request.prompt), expected_end(group, lengths)
    if not group.forked:
        left = prompt_length + group.num_seqs * (end - prompt_length)
    else:
        left = sum(end - sequence.num_computed for sequence in group.live)
    return left - hit_tokens(group, kv_cache) if group.status is Status.WAITING else left
