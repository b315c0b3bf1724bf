"""The work that is left of a request, as far as it is known before the end."""

from __future__ import annotations

from paged_core.sequence import SequenceGroup


def num_tokens_left(group: SequenceGroup) -> int:
    """Tokens that are still to be computed or generated at most, over all sequences to come."""
    prompt_length = len(group.request.prompt)
    if not group.forked:
        return prompt_length + group.num_seqs * (group.max_length - prompt_length)
    return sum(group.max_length - sequence.num_computed for sequence in group.live)
