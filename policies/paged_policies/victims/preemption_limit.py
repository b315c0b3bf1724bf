"""Groups that may be preempted again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from pydantic import Field, PositiveInt

from paged_core.engine.contexts import VictimContext
from paged_core.interfaces.victim import Victim
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup


class LimitedSettings(ComponentSettings):
    """Options of victims that may spare a group."""

    max_preemptions: PositiveInt | None = Field(
        default=None,
        description="do not preempt a group more often while there is another; null: no limit",
    )


class LimitedVictim(Victim):
    """The highest :meth:`score`; among equals, the group that the scheduler ranks worst.

    Of the groups preempted less than ``max_preemptions`` times; if there is none, the one that
    comes last, which the scheduler ranks worst.
    """

    def __init__(self, options: LimitedSettings, context: VictimContext, /) -> None:
        self._max_preemptions = options.max_preemptions
        self._kv_cache = context.kv_cache

    @abstractmethod
    def score(self, group: SequenceGroup, /) -> Any:
        """Return how much a group is to be preferred as a victim."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        eligible, limit = candidates, self._max_preemptions
        if limit is not None:
            eligible = [g for g in candidates if g.num_preemptions < limit] or candidates[-1:]
        return max(reversed(eligible), key=self.score)
