"""Block tables: what may be done to them, and that what fails has changed nothing."""

from __future__ import annotations

from paged_core.sequence import Status
from unit.block_tables import finish_step, fork, grow, make_cache, started


class TestReserve:
    def test_takes_a_block_only_across_a_boundary(self) -> None:
        cache = make_cache(block_size=4)
        (sequence,) = started(cache, 3).live
        grow(cache, sequence)
        assert (cache.num_free, sequence.capacity) == (7, 4)
        finish_step(cache, sequence)
        grow(cache, sequence)
        assert (cache.num_free, sequence.capacity) == (6, 8)

    def test_blocks_to_grow_foretells_what_is_taken(self) -> None:
        for prompt in range(1, 9):
            cache = make_cache(num_blocks=16, block_size=4)
            group = started(cache, prompt, n=3)
            sequences = fork(cache, group, 3)
            expected, free = cache.blocks_to_grow(group), cache.num_free
            for sequence in sequences:
                cache.reserve(sequence, 1)
            assert free - cache.num_free == expected

    def test_the_watermark_is_a_whole_number_of_blocks(self) -> None:
        assert make_cache(num_blocks=19, watermark=0.1).watermark_blocks == 1


class TestFork:
    def test_a_full_last_block_is_not_copied(self) -> None:
        for allocator in ("uncached", "hash_cached"):
            cache = make_cache(block_size=4, allocator=allocator)
            group = started(cache, 4, n=2)
            sequences = fork(cache, group, 2)
            for sequence in sequences:
                cache.reserve(sequence, 1)
            assert not cache.take_changes().copies
            assert cache.num_free == 8 - 3

    def test_a_lone_survivor_writes_in_place(self) -> None:
        cache = make_cache()
        group = started(cache, 2, n=2)
        parent, child = fork(cache, group, 2)
        cache.release(parent)
        group.live.remove(parent)
        cache.reserve(child, 1)
        assert not cache.take_changes().copies
        assert cache.num_free == 7


class TestSwap:
    def test_what_is_still_cached_on_the_device_is_not_moved_back(self) -> None:
        cache = make_cache(num_host_blocks=4)
        group = started(cache, 10)
        (sequence,) = group.live
        first = sequence.table.blocks[0]
        cache.swap_out(group)
        group.status = Status.SWAPPED
        cache.take_changes()
        taken = cache._allocator.allocate(cache.num_free - 1)  # evicts the longer prefix
        cache._allocator.free(taken[-2:])
        cache.swap_in(group)
        assert sequence.table.blocks[0] == first
        assert cache.num_free_host == 2, "one host block is not needed any more"
        assert len(cache.take_changes().swap_in) == 2
        assert cache.num_free_host == 4


class TestChanges:
    def test_a_failed_step_names_removed_sequences_again(self) -> None:
        cache = make_cache()
        group = started(cache, 4)
        cache.release_group(group)
        cache.uncache(cache.take_changes())
        assert cache.take_changes().removed == [group.live[0].id]
