"""A victim that compares the cost of recomputing requests; a minimal plugin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from paged_core.engine.contexts import VictimContext
from paged_core.ids import BlockId
from paged_core.interfaces.victim import Victim
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.sequence import SequenceGroup


class CheapestSettings(ComponentSettings):
    """Options of :class:`CheapestVictim`."""

    name: Literal["cheapest"] = "cheapest"


class CheapestVictim(Victim):
    """Chooses the fewest blocks to recompute; blocks shared with other requests stay cached."""

    def __init__(self, options: CheapestSettings, context: VictimContext, /) -> None:
        pass

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        users = Counter(block for group in candidates for block in _blocks(group))
        return min(
            reversed(candidates),
            key=lambda group: sum(users[block] == 1 for block in _blocks(group)),
        )


def _blocks(group: SequenceGroup) -> set[BlockId]:
    return {block for sequence in group.live for block in sequence.table.blocks}


CHEAPEST = Component(
    "victim", CheapestSettings, f"{__name__}:CheapestVictim", summary="the cheapest to recompute"
)
