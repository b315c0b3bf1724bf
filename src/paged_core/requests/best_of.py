"""Which sequences a request with ``best_of`` returns."""

from __future__ import annotations

from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup


def keep_best(group: SequenceGroup) -> None:
    """Keep the ``n`` sequences of the largest mean log-probability, best first.

    Sequences that failed come first, so that the error is returned; equals stay in order.
    """
    for sequence in group.sequences:
        if sequence.cumulative_logprob is not None:
            sequence.score = sequence.cumulative_logprob / len(sequence.output)
    group.sequences.sort(
        key=lambda sequence: (
            sequence.finish_reason is not FinishReason.ERROR,
            sequence.score is None,
            -(sequence.score or 0.0),
        )
    )
    del group.sequences[group.request.sampling.n :]
    for index, sequence in enumerate(group.sequences):
        sequence.index = index
