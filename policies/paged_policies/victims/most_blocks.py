"""The group that frees the most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.component import ComponentSettings
from paged_core.interfaces.victim import Victim, VictimParts
from paged_core.sequence import SequenceGroup
from paged_policies.victims.spared import not_spared


class MostBlocksSettings(ComponentSettings):
    """Options of :class:`MostBlocksVictim`."""

    name: Literal["most_blocks"] = "most_blocks"
    max_preemptions: PositiveInt | None = Field(
        default=None,
        description="spare whoever was preempted so often while another can give way; null: never",
    )


class MostBlocksVictim(Victim):
    """The most blocks give way; among equals, the one that the scheduler deems worst.

    The largest goes, as Linux kills processes when memory runs out: one preemption makes room for
    many steps. It hits long sequences, whose tokens cost the most to compute again; better with
    swapping. While others keep arriving a long request whose prompt takes several steps can
    starve, unless ``max_preemptions`` spares it in the end.
    """

    def __init__(self, options: MostBlocksSettings, parts: VictimParts, /) -> None:
        self._max_preemptions = options.max_preemptions
        self._kv_cache = parts.kv_cache

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        eligible = not_spared(candidates, self._max_preemptions)
        return max(reversed(eligible), key=self._kv_cache.distinct_blocks)
