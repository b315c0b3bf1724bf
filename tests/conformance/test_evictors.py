"""First-party evictors pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo
from paged_core.requests.lookup_oracle import LookupOracle
from paged_testing import EvictorConformance, IdleBlock
from paged_testing.evictor_model import other_key


def lowest(rank: Callable[[BlockInfo], Any]) -> Any:
    """State that the block of the lowest rank goes first; of equal ones the first added."""

    def expected(self: EvictorConformance, held: Sequence[IdleBlock], /) -> BlockId:
        return min(held, key=lambda idle: rank(idle.info)).block

    return expected


LEAST_RECENT = lowest(lambda info: (info.last_use, -info.num_tokens))


class TestLru(EvictorConformance):
    component = "lru"
    expected = LEAST_RECENT


class TestLruWithTies(EvictorConformance):
    """Ties are broken as vLLM V0 scans blocks."""

    component = {"name": "lru", "ties": "longest_prefix"}  # noqa: RUF012

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        best = held[0]
        for idle in held:
            if (idle.info.last_step or 0) > (best.info.last_step or 0):
                break
            if idle.info.num_tokens > best.info.num_tokens:
                best = idle
        return best.block


class TestFifo(EvictorConformance):
    component = "fifo"
    expected = lowest(lambda info: info.cache_order)


class TestLfu(EvictorConformance):
    component = "lfu"
    expected = lowest(lambda info: (info.num_hits, info.last_use, -info.num_tokens))


class TestMru(EvictorConformance):
    component = "mru"
    expected = lowest(lambda info: (-info.last_use, -info.num_tokens))


class TestSlru(EvictorConformance):
    """With so few blocks hardly any is protected: the order is that of ``lru``."""

    component = {"name": "slru", "protected": 0.05}  # noqa: RUF012
    expected = LEAST_RECENT


class TestSlruWithRoom(EvictorConformance):
    """With so many blocks every block with a hit is protected."""

    component = {"name": "slru", "protected": 0.99}  # noqa: RUF012
    expected = lowest(lambda info: (info.num_hits > 0, info.last_use, -info.num_tokens))

    def make(self, num_blocks: int = 16) -> Any:
        return super().make(num_blocks * 2)


class TestRandom(EvictorConformance):
    component = "random"


class TestArc(EvictorConformance):
    """Its order is compared with a model in ``tests/properties/test_evictors.py``."""

    component = "arc"


class TestTwoQ(EvictorConformance):
    """Its order is compared with a model in ``tests/properties/test_evictors.py``."""

    component = "two_q"


class TestTwoQWithOtherShares(EvictorConformance):
    component = {"name": "two_q", "kin": 0.6, "kout": 0.0}  # noqa: RUF012


class TestBelady(EvictorConformance):
    """No block is looked up again: the least recently used is evicted first."""

    component = "belady"
    expected = LEAST_RECENT


class TestBeladyThatForesees(EvictorConformance):
    component = "belady"
    asked = ((3,), (1, 5), (7, 3), (2, 1))
    """Content keys, request by request; the others are asked for no more."""

    def make(self, num_blocks: int = 16) -> Any:
        both_names = [[*keys, *map(other_key, keys)] for keys in self.asked]
        return self.make_foreseeing(LookupOracle(both_names), num_blocks)

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        def rank(info: BlockInfo) -> Any:
            uses = [at for at, keys in enumerate(self.asked) if info.content_key in keys]
            if not uses:
                return (0, info.last_use, -info.num_tokens)
            return (1, -uses[0], -info.num_tokens)

        ranks = [rank(idle.info) for idle in held]
        found = held[ranks.index(min(ranks))].block
        return found if ranks.count(min(ranks)) == 1 else None
