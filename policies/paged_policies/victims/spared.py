"""Who has given way often enough."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.sequence import SequenceGroup


def not_spared(
    candidates: Sequence[SequenceGroup], max_preemptions: int | None
) -> Sequence[SequenceGroup]:
    """Return those that were preempted less than ``max_preemptions`` times; ``None``: everybody.

    If nobody is left, the one that the scheduler deems worst, which comes last, has to give way.
    """
    if max_preemptions is None:
        return candidates
    return [g for g in candidates if g.num_preemptions < max_preemptions] or candidates[-1:]
