"""First-party evictors pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.sequence import BlockId
from paged_core.testing import EvictorConformance, IdleBlock


class TestLru(EvictorConformance):
    component = "lru"

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        first = min(held, key=lambda idle: (idle.info.last_use, -idle.info.num_tokens))
        return first.block
