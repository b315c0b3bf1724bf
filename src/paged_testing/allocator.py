"""Conformance of block allocators, on their own and as prefix caches."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import count, permutations
from typing import Any, ClassVar

import pytest

from paged_core.engine.contexts import AllocatorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockKey
from paged_core.interfaces.allocator import (
    BlockAllocator,
    SupportsLastStep,
    SupportsPrefixCache,
    SupportsReservation,
)
from paged_core.interfaces.evictor import Evictor
from paged_testing.allocator_model import (
    AllocatorModel,
    PlainEvictor,
    PrefixCacheModel,
)
from paged_testing.component import ComponentConformance
from paged_testing.repeats import ServesEveryWorkload
from paged_testing.use import instructions


class AllocatorCases(ComponentConformance):
    """The cases of :class:`~paged_testing.BlockAllocatorConformance`."""

    slot: ClassVar[str] = "block_allocator"
    block_size = 2

    def make(self, num_blocks: int, evictor: Evictor | None = None) -> BlockAllocator:
        """A fresh allocator over this many blocks."""
        made = self.build(
            AllocatorContext(
                max_model_len=2048,
                num_blocks=num_blocks,
                block_size=self.block_size,
                evictor=PlainEvictor() if evictor is None else evictor,
            )
        )
        assert isinstance(made, BlockAllocator)
        return made

    # ------------------------------------------------------------------ blocks

    def test_a_long_run_of_blocks_is_freed_at_once(self) -> None:
        allocator = self.make(40)
        taken = allocator.allocate(40)
        allocator.share(taken[:30])
        allocator.free(reversed(taken))
        assert allocator.num_free == 10
        allocator.free(reversed(taken[:30]))
        assert allocator.num_free == 40

    @pytest.mark.parametrize("state", ["free", "mixed", "cached", "of equal content", "a prefix"])
    def test_instructions_grow_no_faster_than_a_logarithm(self, state: str) -> None:
        small, large = (self._costs(size, state) for size in (64, 512))
        for name, cost in large.items():
            assert cost <= 2 * small[name] + 8, (
                f"{name} takes {small[name]:.0f} instructions and items among 64, {cost:.0f} among "
                f"512, all but 8 of them {state}, of few blocks, and for each where all are given; "
                "a block has as many references as there are blocks"
            )

    def _costs(self, num_blocks: int, state: str) -> dict[str, float]:
        """Return what a use of each member costs with so many blocks, on the average, and for each
        block where all are given at once."""
        allocator, spent = self.make(num_blocks), Counter[str]()
        cache = allocator if isinstance(allocator, SupportsPrefixCache) else None
        first, numbers = BlockKey(None, (0, 0)), count(num_blocks)

        def use(name: str, *args: Any, share: float = 1) -> Any:
            found: Any = None

            def once() -> None:
                nonlocal found
                found = getattr(allocator, name)
                if name != "num_free":
                    found = found(*args)

            spent[name] += round(share * instructions(once, self.package, everywhere=True))
            return found

        of_all = partial(use, share=32 / num_blocks)
        others, keys = of_all("allocate", num_blocks), [first]
        if cache is not None and state not in ("free", "mixed"):
            for place, block in enumerate(others[8:], 8):
                keys.append(BlockKey(keys[-1] if state == "a prefix" else None, (block, 0)))
                key = first if state == "of equal content" else keys[-1]
                others[place] = cache.cache(block, key)
            of_all("look_up", keys[1:])
        last, often = keys[-1], [others.pop()]
        of_all("share", often * num_blocks)
        of_all("free", others[::-1] if state != "mixed" else [*others[:-8:2], *others[-8:]])

        for _ in range(32):
            blocks = use("allocate", 2)
            use("share", [*blocks, *often])
            use("ref_count", blocks[0])
            use("ref_count", often[0])
            use("num_free")
            if cache is not None:
                before = last if state == "a prefix" else None
                keys = [BlockKey(before, (next(numbers), 0)), first]
                blocks = [use("cache", *both) for both in zip(blocks, keys, strict=True)]
                assert use("look_up", keys[:1] if before is None else keys[1:])
                use("uncache", blocks[1:])
            use("free", [*blocks, *often])
            if isinstance(allocator, SupportsLastStep):
                use("release", blocks, 1)
            else:
                use("free", blocks)
            if cache is not None:
                use("uncache", blocks)
            if isinstance(allocator, SupportsReservation):
                use("blocks_to_reserve", 3, 4)
                assert use("can_reserve", 2)
                allocator.free(use("reserve", 2))
        if cache is not None:
            of_all("uncache", others)
        return {name: total / 32 for name, total in spent.items()}

    @pytest.mark.parametrize("seed", range(2))
    def test_counts_the_same_as_the_model(self, seed: int) -> None:
        self.walk(900, seed)

    def walk(self, num_actions: int, seed: int) -> None:
        """Take so many actions, in a fresh allocator and in its model."""
        kind = PrefixCacheModel if self._caches else AllocatorModel
        kind(self.make, self.block_size).walk(num_actions, seed)

    # ------------------------------------------------------------------ the prefix cache

    @property
    def _caches(self) -> bool:
        return isinstance(self.make(1), SupportsPrefixCache)

    def _cache(
        self, num_blocks: int = 4, evictor: Evictor | None = None
    ) -> tuple[BlockAllocator, SupportsPrefixCache]:
        allocator = self.make(num_blocks, evictor)
        if not isinstance(allocator, SupportsPrefixCache):
            pytest.skip("it caches no prefixes")
        return allocator, allocator

    def test_hits_are_verified_against_the_prefix(self) -> None:
        allocator, cache = self._cache()
        first, second = allocator.allocate(2)
        one, other = BlockKey(None, (1, 2)), BlockKey(None, (3, 4))
        below_one, below_other = BlockKey(one, (5, 6)), BlockKey(other, (5, 6))
        for key in (one, other, below_one, below_other):
            key._hash = 7
        cache.cache(first, one)
        cache.cache(second, below_one)
        assert cache.look_up([one, below_one]) == [first, second]
        assert cache.look_up([other, below_other]) == []
        assert cache.look_up([one, below_other]) == [first]

    def test_blocks_without_cached_content_are_taken_before_others(self) -> None:
        allocator, cache = self._cache(4)
        (block,) = allocator.allocate(1)
        cache.cache(block, BlockKey(None, (1, 2)))
        allocator.free([block])
        assert block not in allocator.allocate(3)
        assert cache.look_up([BlockKey(None, (1, 2))]) == [block]

    def test_tells_the_evictor_of_blocks_as_they_are_freed(self) -> None:
        """Each once, in the order of the call, with the length of the prefix that it ends."""
        evictor = PlainEvictor()
        allocator, cache = self._cache(4, evictor)
        blocks, key = allocator.allocate(3), None
        for number, block in enumerate(blocks):
            key = BlockKey(key, (number, number))
            cache.cache(block, key)
        allocator.free(reversed(blocks[1:]))
        first = list(evictor.held.items())
        assert [block for block, _ in first] == blocks[:0:-1]
        assert [info.num_tokens for _, info in first] == [6, 4]
        assert first[0][1].parent_key == first[1][1].content_key, "it is that of the block before"
        assert first[0][1].last_use == first[1][1].last_use, "one request left them together"
        allocator.free(blocks[:1])
        last = evictor.held[blocks[0]]
        assert last.num_tokens == 2
        assert last.last_use > first[0][1].last_use
        if isinstance(allocator, SupportsLastStep):
            allocator.share(blocks[:1] * 2)
            allocator.release(blocks[:1], 10)
            allocator.share(blocks[:1])
            allocator.release(blocks[:1] * 2, 0)
            told = evictor.held[blocks[0]].last_step
            assert told == 10, (
                f"a block released after step 10 and, by another sequence, after step 0 was used "
                f"last in step 10, and the evictor is told {told}"
            )

    # ------------------------------------------------------------------ reservations

    def _reserving(self, num_blocks: int) -> tuple[BlockAllocator, SupportsReservation]:
        allocator = self.make(num_blocks)
        if not isinstance(allocator, SupportsReservation):
            pytest.skip("it makes no reservations")
        return allocator, allocator

    def test_reserves_blocks_that_are_adjacent(self) -> None:
        allocator, reserving = self._reserving(6)
        run = reserving.reserve(4)
        assert run == list(range(run[0], run[0] + 4))
        assert allocator.num_free == 2
        with pytest.raises(OutOfBlocks):
            reserving.reserve(3)
        assert allocator.num_free == 2
        assert reserving.can_reserve(2), "a reservation that failed took blocks"
        allocator.free(run)
        assert allocator.num_free == 6

    def test_what_can_be_reserved_is_adjacent_after_any_order_of_frees(self) -> None:
        for order in permutations(range(3)):
            allocator, reserving = self._reserving(6)
            runs = [reserving.reserve(2) for _ in range(3)]
            allocator.free(runs[order[0]])
            assert reserving.can_reserve(2)
            assert not reserving.can_reserve(3)
            allocator.free(runs[order[1]])
            together = abs(runs[order[0]][0] - runs[order[1]][0]) == 2
            assert reserving.can_reserve(4) == together, "runs that are adjacent make a longer one"
            allocator.free(runs[order[2]])
            assert reserving.can_reserve(6)
            assert sorted(reserving.reserve(6)) == list(range(6))

    def test_reserves_at_least_what_a_sequence_may_have(self) -> None:
        _, reserving = self._reserving(64)
        for num_tokens in range(1, 20):
            for longest in range(num_tokens, 20):
                count = reserving.blocks_to_reserve(num_tokens, longest)
                needed = -(-longest // self.block_size)
                assert count >= needed, (
                    f"{count} blocks for {num_tokens} tokens that may become {longest}"
                )


class BlockAllocatorConformance(ServesEveryWorkload, AllocatorCases):
    """Subclass it for a block allocator; the optional protocols that it supports are detected::

    class TestMyAllocator(BlockAllocatorConformance):
        component = "my_allocator"
    """

    def check_written(self) -> None:
        super().check_written()
        self.walk(150, 0)
