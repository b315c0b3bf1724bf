"""Block tables, and blocks that are found by their content or merged with equal ones."""

from __future__ import annotations

from typing import Any

from paged_core.cache.kv_cache import KVCache
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, Status
from unit.block_tables import finish_step, fork, grow, make_cache, make_group, plan_unknown, started


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


class TestPrefixes:
    def test_are_found_to_the_first_miss(self) -> None:
        cache = make_cache(block_size=4)
        held = started(cache, 12).live[0].table.blocks
        other = make_group([*range(8), 77, *range(9, 20)]).live[0]
        hit = cache.lookup(other, 19)
        assert list(hit.blocks) == held[:2]
        assert (hit.num_committed, hit.num_idle) == (2, 0)

    def test_only_whole_blocks_of_what_was_asked_for(self) -> None:
        cache = make_cache(block_size=4)
        started(cache, 12)
        other = make_group(12).live[0]
        assert [len(cache.lookup(other, n).blocks) for n in (3, 4, 7, 8, 11, 12)] == [
            0, 1, 1, 2, 2, 3,
        ]  # fmt: skip

    def test_are_shared_only_under_an_equal_salt(self) -> None:
        cache = make_cache(block_size=4)
        started(cache, 8, cache_salt="a")
        found = [
            len(cache.lookup(make_group(8, cache_salt=salt).live[0], 8).blocks)
            for salt in ("a", "b", None)
        ]
        assert found == [2, 0, 0]

    def test_are_not_used_where_the_prompt_is_reported(self) -> None:
        cache = make_cache(block_size=4)
        started(cache, 8)
        asking = make_group(8, sampling=SamplingParams(prompt_logprobs=0)).live[0]
        assert not cache.lookup(asking, 8).blocks

    def test_blocks_filled_in_this_step_are_not_settled(self) -> None:
        cache = make_cache(num_blocks=16, block_size=4)
        started(cache, 4)
        cache.admit(make_group(8).live[0], 8, cache.lookup(make_group(8).live[0], 4), 4)
        hit = cache.lookup(make_group(8).live[0], 8)
        assert (len(hit.blocks), hit.num_committed) == (2, 1)
        cache.take_changes()
        assert cache.lookup(make_group(8).live[0], 8).num_committed == 2

    def test_a_withdrawn_chunk_takes_back_only_its_own(self) -> None:
        cache = make_cache(block_size=4)
        group = started(cache, 4)
        grow(cache, group.live[0], 4)
        cache.release_group(group)
        tokens = group.live[0].tokens
        assert len(cache.lookup(make_group(tokens).live[0], 8).blocks) == 1


class TestUnknownTokens:
    """Steps that are planned while the one before is in flight, and draws a token."""

    @staticmethod
    def scheduled_ahead(**options: Any) -> tuple[KVCache, SequenceGroup]:
        """8 tokens are scheduled, of which 7 are known."""
        cache = make_cache(block_size=4, **options)
        group = started(cache, 7)
        plan_unknown(cache, group.live[0], 1)
        return cache, group

    @staticmethod
    def draw(group: SequenceGroup, token: int = 7) -> None:
        """The step in flight is back with a token, and a next one draws another."""
        (sequence,) = group.live
        sequence.tokens.append(token)
        sequence.num_computed = 8

    def test_a_block_is_cached_once_its_tokens_are_known(self) -> None:
        cache, group = self.scheduled_ahead()
        (sequence,), other = group.live, make_group(8).live[0]
        assert sequence.table.num_cached == len(cache.lookup(other, 8).blocks) == 1
        self.draw(group)
        cache.reserve(sequence, 1)
        hit = cache.lookup(other, 8)
        assert list(hit.blocks) == sequence.table.blocks[:2]
        assert hit.num_committed == 2, "a step that was planned before fills it"

    def test_count_in_what_a_recomputed_group_takes(self) -> None:
        cache = make_cache(num_blocks=16, block_size=4)
        group = started(cache, 7, n=2)
        first, second = fork(cache, group, 2)
        assert cache.blocks_to_restore(group) == 2 + 2 - 1
        first.num_unknown = second.num_unknown = 1
        assert cache.blocks_to_restore(group) == 3 + 3 - 1


class TestMerging:
    """Where the allocator merges a block that fills with an equal one."""

    @staticmethod
    def cache(**options: Any) -> KVCache:
        return make_cache(block_size=4, merge_duplicates=True, **options)

    def test_adopts_a_block_of_an_earlier_step(self) -> None:
        cache = self.cache()
        held = started(cache, [1, 2, 3, 4]).live[0].table.blocks[0]
        (sequence,) = started(cache, [1, 2, 3]).live
        sequence.tokens.append(4)
        cache.reserve(sequence, 1)
        assert sequence.table.blocks == [held]
        assert cache.num_free == 7
        changes = cache.take_changes()
        assert (changes.edit_ids, changes.edit_blocks) == ([sequence.id], [held])
