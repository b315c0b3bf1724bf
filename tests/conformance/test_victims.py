"""First-party victims pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.sequence import SequenceGroup
from paged_core.testing import VictimConformance


class TestNewest(VictimConformance):
    component = "newest"

    def expected(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup | None:
        return candidates[-1]
