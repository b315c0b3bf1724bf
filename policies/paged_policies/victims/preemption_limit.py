"""Groups that may be preempted again."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.sequence import SequenceGroup


def below_limit(
    candidates: Sequence[SequenceGroup], max_preemptions: int | None
) -> Sequence[SequenceGroup]:
    """Return the groups preempted less than ``max_preemptions`` times; ``None``: all of them.

    If there is none, the one that comes last, which the scheduler ranks worst.
    """
    if max_preemptions is None:
        return candidates
    return [g for g in candidates if g.num_preemptions < max_preemptions] or candidates[-1:]
