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


def leaves(held: Sequence[IdleBlock]) -> list[IdleBlock]:
    """The blocks on which no other depends."""
    parents = {idle.info.parent_key for idle in held} - {None}
    return [idle for idle in held if idle.info.content_key not in parents]


class TestLru(EvictorConformance):
    component = "lru"
    strands = False
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


class TestFifoOfLeaves(EvictorConformance):
    component = {"name": "fifo", "leaves_first": True}  # noqa: RUF012
    strands = False

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        found = leaves(held)
        return min(found, key=lambda idle: idle.info.cache_order).block if found else None


class TestLeafFirst(EvictorConformance):
    component = "leaf_first"
    strands = False

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        ranks = {
            idle.block: (idle.info.num_hits, idle.info.last_use, -idle.info.num_tokens)
            for idle in leaves(held)
        }
        return min(ranks, key=lambda block: ranks[block]) if ranks else None


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


class TestRandomOfLeaves(EvictorConformance):
    component = {"name": "random", "leaves_first": True}  # noqa: RUF012
    strands = False


class TestQueueInformedLru(EvictorConformance):
    component = "queue_informed_lru"

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        return min(held, key=lambda idle: idle.wanted).block


class TestSieve(EvictorConformance):
    """Its order, and those of the next, are compared in ``tests/properties/test_evictors.py``."""

    component = "sieve"


class TestSieveOfLeaves(EvictorConformance):
    component = {"name": "sieve", "leaves_first": True}  # noqa: RUF012
    strands = False


class TestS3Fifo(EvictorConformance):
    component = "s3_fifo"


class TestS3FifoOfLeaves(EvictorConformance):
    component = {"name": "s3_fifo", "leaves_first": True, "small": 0.4}  # noqa: RUF012
    strands = False


class TestGdsf(EvictorConformance):
    component = "gdsf"
    strands = False


class TestRecomputeCost(EvictorConformance):
    component = "recompute_cost"
    strands = False


class TestRecomputeCostOfAnyBlock(EvictorConformance):
    component = {"name": "recompute_cost", "leaves_first": False, "even_at": 8, "weight": 2.0}  # noqa: RUF012
    expected = lowest(
        lambda info: (info.last_use + 2 * info.num_tokens / 8, info.last_use, -info.num_tokens)
    )


class TestLecar(EvictorConformance):
    component = "lecar"


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
