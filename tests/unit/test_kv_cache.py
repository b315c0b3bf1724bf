"""Block tables: what may be done to them, and that what fails has changed nothing."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.cache.kv_cache import KVCache
from paged_core.errors import OutOfBlocks
from paged_core.sequence import SequenceGroup, Status
from unit.block_tables import finish_step, fork, grow, make_cache, make_group, started


def state_of(cache: KVCache, *groups: SequenceGroup) -> Any:
    """Everything that an operation that raises must leave alone."""
    tables = [
        (list(s.table.blocks), list(s.table.host_blocks), s.table.num_cached)
        for group in groups
        for s in group.live
    ]
    counters = [
        (s.num_computed, s.num_scheduled, s.capacity) for group in groups for s in group.live
    ]
    caching = repr({**vars(cache._prefix_cache), "_allocator": None, "_prefixes": None})
    return tables, counters, cache.num_free, cache.num_free_host, repr(cache._changes), caching


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

    def test_takes_all_or_nothing(self) -> None:
        cache = make_cache(num_blocks=3, block_size=2)
        group = started(cache, 4)
        (sequence,) = group.live
        before = state_of(cache, group)
        with pytest.raises(OutOfBlocks):
            cache.reserve(sequence, 3)
        assert state_of(cache, group) == before
        cache.reserve(sequence, 2)

    def test_an_admission_that_fails_takes_nothing(self) -> None:
        cache = make_cache(num_blocks=3, block_size=2)
        first = started(cache, [1, 2, 3, 4])
        cache.release_group(first)
        group = make_group([1, 2, 3, 4, 5, 6, 7])
        (sequence,) = group.live
        hit = cache.lookup(sequence, 6)
        assert (len(hit.blocks), hit.num_committed, hit.num_idle) == (2, 2, 2)
        before = state_of(cache, group)
        with pytest.raises(OutOfBlocks):
            cache.admit(sequence, 3, hit, 4)
        assert state_of(cache, group) == before
        assert [cache._allocator.ref_count(block) for block in hit.blocks] == [0, 0]
        cache.admit(sequence, 2, hit, 4)
        assert cache.num_free == 0

    def test_a_copy_on_write_that_fails_changes_nothing(self) -> None:
        cache = make_cache(num_blocks=1)
        group = started(cache, 2, n=2)
        parent, _ = fork(cache, group, 2)
        before = state_of(cache, group)
        with pytest.raises(OutOfBlocks):
            cache.reserve(parent, 1)
        assert state_of(cache, group) == before


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

    def test_sharing_inside_a_group_survives(self) -> None:
        cache = make_cache(num_host_blocks=2)
        group = started(cache, 6, n=3)
        sequences = fork(cache, group, 3)
        cache.swap_out(group)
        assert cache.num_free_host == 0
        assert len({tuple(s.table.host_blocks) for s in sequences}) == 1
        cache.take_changes()
        cache.swap_in(group)
        assert len({tuple(s.table.blocks) for s in sequences}) == 1
        assert cache.num_free == 6
        assert cache._allocator.ref_count(sequences[0].table.blocks[0]) == 3
        for sequence in sequences:
            cache.reserve(sequence, 1)
        assert len({s.table.blocks[1] for s in sequences}) == 3
        cache.release_group(group)
        cache.take_changes()
        assert (cache.num_free, cache.num_free_host) == (8, 2)

    def test_a_copy_planned_in_the_same_step_is_saved_from_its_source(self) -> None:
        cache = make_cache(num_host_blocks=4)
        group = started(cache, 6, n=2)
        parent, child = fork(cache, group, 2)
        shared, tail = parent.table.blocks
        cache.reserve(parent, 1)
        cache.swap_out(group)
        changes = cache.take_changes()
        assert not changes.copies, "nothing may write to a block that was given back"
        saved = {host: device for device, host in changes.swap_out}
        assert [saved[b] for b in parent.table.host_blocks] == [shared, tail]
        assert [saved[b] for b in child.table.host_blocks] == [shared, tail]
        assert cache.num_free_host == 1

    def test_out_fails_without_change(self) -> None:
        cache = make_cache(num_host_blocks=2)
        group = started(cache, 10)
        before = state_of(cache, group)
        with pytest.raises(OutOfBlocks):
            cache.swap_out(group)
        assert state_of(cache, group) == before

    def test_in_fails_without_change(self) -> None:
        cache = make_cache(num_blocks=3, num_host_blocks=3)
        group = started(cache, 10)
        cache.swap_out(group)
        group.status = Status.SWAPPED
        other = started(cache, [7, 8, 9])
        before = state_of(cache, group, other)
        with pytest.raises(OutOfBlocks):
            cache.swap_in(group)
        assert state_of(cache, group, other) == before

    def test_a_group_is_not_swapped_out_by_the_step_that_swaps_it_in(self) -> None:
        cache = make_cache(num_host_blocks=16)
        group = started(cache, 10)
        cache.swap_out(group)
        cache.take_changes()
        cache.swap_in(group)
        before = state_of(cache, group)
        with pytest.raises(OutOfBlocks, match="on their way"):
            cache.swap_out(group)
        assert state_of(cache, group) == before
        cache.take_changes()
        cache.swap_out(group)


class TestChanges:
    def test_a_failed_step_names_removed_sequences_again(self) -> None:
        cache = make_cache()
        group = started(cache, 4)
        cache.release_group(group)
        cache.uncache(cache.take_changes())
        assert cache.take_changes().removed == [group.live[0].id]
