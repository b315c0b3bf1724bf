"""The group that frees the most."""

from __future__ import annotations

from typing import Literal

from paged_core.sequence import SequenceGroup
from paged_policies.victims.preemption_limit import LimitedSettings, LimitedVictim


class MostBlocksSettings(LimitedSettings):
    """Options of :class:`MostBlocksVictim`."""

    name: Literal["most_blocks"] = "most_blocks"


class MostBlocksVictim(LimitedVictim):
    """Most blocks first; among equals, the one that the scheduler ranks worst.

    As Linux kills the largest process when memory runs out: one preemption frees blocks for many
    steps. It hits long sequences, which cost the most to recompute; better with swapping. While
    others keep arriving a long request whose prompt takes several steps can starve, unless
    ``max_preemptions`` ends that.
    """

    def score(self, group: SequenceGroup, /) -> int:
        return self._kv_cache.distinct_blocks(group)
