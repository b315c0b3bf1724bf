"""The group that frees the most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.victim import Victim, VictimParts
from paged_core.sequence import SequenceGroup


class MostBlocksSettings(ComponentSettings):
    """Options of :class:`MostBlocksVictim`."""

    name: Literal["most_blocks"] = "most_blocks"


class MostBlocksVictim(Victim):
    """The most blocks give way; among equals, the one that the scheduler deems worst.

    One preemption makes room for many steps. It hits long sequences, whose tokens cost the most to
    compute again; better with swapping."""

    def __init__(self, options: MostBlocksSettings, parts: VictimParts, /) -> None:
        self._kv_cache = parts.kv_cache

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        return max(reversed(candidates), key=self._kv_cache.distinct_blocks)
