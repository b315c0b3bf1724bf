"""What a block allocator must do, on its own and as a prefix cache."""

from __future__ import annotations

from typing import ClassVar

import pytest

from paged_core.block_key import BlockKey
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.allocator import (
    AllocatorParts,
    BlockAllocator,
    SupportsPrefixCache,
    SupportsReservation,
)
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.testing.allocator_machine import AllocatorMachine, PrefixCacheMachine
from paged_core.testing.component_conformance import ServesEveryWorkload


class PlainEvictor(Evictor):
    """Evicts the smallest block number, and checks the calls that it gets."""

    def __init__(self) -> None:
        self.held: dict[BlockId, BlockInfo] = {}

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        assert block not in self.held, f"block {block} was added to the evictor twice"
        self.held[block] = info

    def remove(self, block: BlockId, /) -> None:
        del self.held[block]

    def evict(self) -> BlockId:
        if not self.held:
            raise OutOfBlocks("no block is idle")
        block = min(self.held)
        del self.held[block]
        return block

    def __len__(self) -> int:
        return len(self.held)


class BlockAllocatorConformance(ServesEveryWorkload):
    """Subclass it for a block allocator; the optional protocols that it supports are detected::

    class TestMyAllocator(BlockAllocatorConformance):
        component = "my_allocator"
    """

    slot: ClassVar[str] = "block_allocator"
    max_examples = 40
    block_size = 2

    def make(self, num_blocks: int, evictor: Evictor | None = None) -> BlockAllocator:
        """A fresh allocator over this many blocks."""
        made = self.build(
            AllocatorParts(
                max_model_len=2048,
                num_blocks=num_blocks,
                block_size=self.block_size,
                evictor=evictor or PlainEvictor(),
            )
        )
        assert isinstance(made, BlockAllocator)
        return made

    # ------------------------------------------------------------------ blocks

    def test_everything_is_free_at_first(self) -> None:
        allocator = self.make(5)
        assert allocator.num_free == 5
        assert [allocator.ref_count(BlockId(block)) for block in range(5)] == [0] * 5

    def test_allocating_no_blocks_takes_none(self) -> None:
        allocator = self.make(2)
        assert allocator.allocate(0) == []
        assert allocator.num_free == 2
        taken = allocator.allocate(2)
        assert allocator.allocate(0) == []
        allocator.free(taken)

    def test_hands_out_every_block_once(self) -> None:
        allocator = self.make(6)
        taken = [*allocator.allocate(2), *allocator.allocate(4)]
        assert sorted(taken) == list(range(6))
        assert allocator.num_free == 0
        assert {allocator.ref_count(block) for block in taken} == {1}

    def test_takes_all_or_nothing(self) -> None:
        allocator = self.make(4)
        held = allocator.allocate(2)
        with pytest.raises(OutOfBlocks):
            allocator.allocate(3)
        assert allocator.num_free == 2
        assert [allocator.ref_count(BlockId(block)) for block in range(4)].count(1) == 2
        assert not set(allocator.allocate(2)) & set(held)

    def test_a_shared_block_stays_until_its_last_reference_is_freed(self) -> None:
        allocator = self.make(3)
        (block,) = allocator.allocate(1)
        allocator.share([block])
        assert allocator.ref_count(block) == 2
        allocator.free([block])
        assert (allocator.num_free, allocator.ref_count(block)) == (2, 1)
        allocator.free([block])
        assert (allocator.num_free, allocator.ref_count(block)) == (3, 0)

    def test_a_shared_block_may_be_freed_twice_in_one_call(self) -> None:
        allocator = self.make(3)
        (block,) = allocator.allocate(1)
        allocator.share([block])
        allocator.free([block, block])
        assert allocator.num_free == 3

    def test_takes_iterators(self) -> None:
        allocator = self.make(3)
        blocks = allocator.allocate(2)
        allocator.share(iter(blocks))
        allocator.free(iter(blocks))
        allocator.free(reversed(blocks))
        assert allocator.num_free == 3

    def test_behaves_like_the_model(self) -> None:
        kind = PrefixCacheMachine if self._caches else AllocatorMachine
        self.check_machine(lambda: kind(self.make, self.block_size))

    # ------------------------------------------------------------------ the prefix cache

    @property
    def _caches(self) -> bool:
        return isinstance(self.make(1), SupportsPrefixCache)

    def _cache(self, num_blocks: int = 4) -> tuple[BlockAllocator, SupportsPrefixCache]:
        allocator = self.make(num_blocks)
        if not isinstance(allocator, SupportsPrefixCache):
            pytest.skip("it caches no prefixes")
        return allocator, allocator

    def test_a_published_block_is_found_while_it_is_used_and_when_it_is_idle(self) -> None:
        allocator, cache = self._cache()
        (block,) = allocator.allocate(1)
        assert cache.publish(block, BlockKey(None, (1, 2))) == block
        assert cache.look_up([BlockKey(None, (1, 2))]) == [block]
        allocator.free([block])
        assert allocator.num_free == 4
        assert cache.look_up([BlockKey(None, (1, 2))]) == [block]
        assert allocator.ref_count(block) == 0, "looking up references nothing"
        allocator.share([block])
        assert (allocator.num_free, allocator.ref_count(block)) == (3, 1)

    def test_a_block_that_is_allocated_again_is_not_found(self) -> None:
        allocator, cache = self._cache(2)
        (block,) = allocator.allocate(1)
        cache.publish(block, BlockKey(None, (1, 2)))
        allocator.free([block])
        assert block in allocator.allocate(2)
        assert cache.look_up([BlockKey(None, (1, 2))]) == []

    def test_a_retracted_block_is_not_found(self) -> None:
        allocator, cache = self._cache()
        (block,) = allocator.allocate(1)
        cache.publish(block, BlockKey(None, (1, 2)))
        cache.retract([block])
        assert cache.look_up([BlockKey(None, (1, 2))]) == []
        assert allocator.ref_count(block) == 1
        allocator.free([block])
        assert allocator.num_free == 4
        assert cache.look_up([BlockKey(None, (1, 2))]) == []

    def test_of_equal_blocks_the_one_published_first_is_found(self) -> None:
        allocator, cache = self._cache()
        first, second = allocator.allocate(2)
        assert cache.publish(first, BlockKey(None, (1, 2))) == first
        held = cache.publish(second, BlockKey(None, (1, 2)))
        assert cache.look_up([BlockKey(None, (1, 2))]) == [first]
        if held == second:
            cache.retract([first])
            assert cache.look_up([BlockKey(None, (1, 2))]) == [second]
        else:
            assert held == first, "a block was merged into one with other content"
            assert (allocator.ref_count(first), allocator.ref_count(second)) == (2, 0)

    def test_hits_are_verified_against_the_tokens(self) -> None:
        allocator, cache = self._cache()
        (block,) = allocator.allocate(1)
        ours, theirs = BlockKey(None, (1, 2)), BlockKey(None, (3, 4))
        ours._hash = theirs._hash = 7
        cache.publish(block, ours)
        assert cache.look_up([theirs]) == [], "a hash was trusted"
        assert cache.look_up([ours]) == [block]

    def test_hits_are_verified_against_the_prefix(self) -> None:
        allocator, cache = self._cache()
        first, second = allocator.allocate(2)
        one, other = BlockKey(None, (1, 2)), BlockKey(None, (3, 4))
        below_one, below_other = BlockKey(one, (5, 6)), BlockKey(other, (5, 6))
        for key in (one, other, below_one, below_other):
            key._hash = 7
        cache.publish(first, one)
        cache.publish(second, below_one)
        assert cache.look_up([one, below_one]) == [first, second]
        assert cache.look_up([other, below_other]) == []
        assert cache.look_up([one, below_other]) == [first]

    def test_extra_keys_set_equal_tokens_apart(self) -> None:
        allocator, cache = self._cache()
        (block,) = allocator.allocate(1)
        cache.publish(block, BlockKey(None, (1, 2), "salt"))
        assert cache.look_up([BlockKey(None, (1, 2))]) == []
        assert cache.look_up([BlockKey(None, (1, 2), "pepper")]) == []
        assert cache.look_up([BlockKey(None, (1, 2), "salt")]) == [block]

    def test_looks_up_to_the_first_miss(self) -> None:
        allocator, cache = self._cache()
        keys = [BlockKey(None, (0, 0))]
        for token in range(1, 3):
            keys.append(BlockKey(keys[-1], (token, token)))
        blocks = allocator.allocate(3)
        cache.publish(blocks[0], keys[0])
        cache.publish(blocks[2], keys[2])
        assert cache.look_up(keys) == blocks[:1]
        assert cache.look_up([]) == []

    # ------------------------------------------------------------------ reservations

    def test_reserves_blocks_that_are_adjacent(self) -> None:
        allocator = self.make(6)
        if not isinstance(allocator, SupportsReservation):
            pytest.skip("it makes no reservations")
        run = allocator.reserve(4)
        assert run == list(range(run[0], run[0] + 4))
        assert allocator.num_free == 2
        with pytest.raises(OutOfBlocks):
            allocator.reserve(3)
        assert allocator.num_free == 2
        allocator.free(run)
        assert allocator.num_free == 6
