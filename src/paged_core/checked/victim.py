"""A victim component whose answers are checked before the scheduler acts on them."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.errors import PluginError
from paged_core.interfaces.victim import Victim
from paged_core.sequence import SequenceGroup


class CheckedVictim(Victim):
    """Returns what a victim component chooses, if it is one of the candidates."""

    def __init__(self, inner: Victim) -> None:
        self.inner = inner

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        """Return the choice.

        Raises:
            PluginError: it is not one of ``candidates``.
        """
        offered = tuple(candidates)
        chosen = self.inner.choose(candidates, now)
        if not any(chosen is group for group in offered):
            raise PluginError(
                f"{type(self.inner).__qualname__} chose {chosen!r}, which is none of the "
                f"{len(offered)} candidates it was shown; choose() has to return one of them "
                "(paged_testing.VictimConformance tests it)"
            )
        return chosen
