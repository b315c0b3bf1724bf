"""First-party evictors pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paged_core.interfaces.evictor import BlockInfo
from paged_core.sequence import BlockId
from paged_core.testing import EvictorConformance, IdleBlock


def lowest(held: Sequence[IdleBlock], rank: Any) -> BlockId:
    """The block whose rank is the lowest; of equals the one that came first."""
    return min(held, key=lambda idle: rank(idle.info)).block


class TestLru(EvictorConformance):
    component = "lru"

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        return lowest(held, lambda info: (info.last_use, -info.num_tokens))


class TestFifo(EvictorConformance):
    component = "fifo"

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        return lowest(held, lambda info: info.published)


class TestLfu(EvictorConformance):
    component = "lfu"

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        return lowest(held, lambda info: (info.num_hits, info.last_use, -info.num_tokens))


class TestMru(EvictorConformance):
    component = "mru"

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        return lowest(held, lambda info: (-info.last_use, -info.num_tokens))


class TestSlru(EvictorConformance):
    """So few blocks that hardly any can be protected: the order is then that of ``lru``."""

    component = {"name": "slru", "protected": 0.05}  # noqa: RUF012

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        return lowest(held, lambda info: (info.last_use, -info.num_tokens))


class TestSlruWithRoom(EvictorConformance):
    """So much room that whatever was found once is protected."""

    component = {"name": "slru", "protected": 0.99}  # noqa: RUF012

    def make(self, num_blocks: int = 16) -> Any:
        return super().make(num_blocks * 2)

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        def rank(info: BlockInfo) -> Any:
            return (info.num_hits > 0, info.last_use, -info.num_tokens)

        return lowest(held, rank)


class TestRandom(EvictorConformance):
    component = "random"
