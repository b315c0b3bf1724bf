"""Groups that are preempted, resumed or ignored, and the blocks reserved for them."""

from __future__ import annotations

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.preemptor import Preemptor
from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.interfaces.scheduler import Schedule
from paged_core.sequence import SequenceGroup, Status
from unit.block_tables import make_cache, make_group


class Always(Preemption):
    """One mode, and so many tokens to reserve."""

    def __init__(self, mode: PreemptionMode, num_tokens: int | None = None) -> None:
        self._mode, self._num_tokens = mode, num_tokens

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return self._mode

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        return self._num_tokens


RECOMPUTE, SWAP = Always(PreemptionMode.RECOMPUTE), Always(PreemptionMode.SWAP)


def running_group(cache: KVCache, num_tokens: int, plan: Schedule) -> SequenceGroup:
    """A group whose prompt was computed, and whose next token is planned."""
    group = make_group(num_tokens)
    (sequence,) = group.live
    cache.admit(sequence, num_tokens)
    sequence.num_scheduled = sequence.num_computed = num_tokens
    sequence.tokens.append(0)
    cache.reserve(sequence, 1)
    plan.add(sequence, 1)
    return group


def test_recompute_drops_its_blocks_and_what_was_planned() -> None:
    cache, plan = make_cache(), Schedule()
    group, other = (running_group(cache, 8, plan) for _ in range(2))
    assert group.status is Status.RUNNING
    done = Preemptor(cache, RECOMPUTE).preempt(plan, group, 3.0)
    assert done is PreemptionMode.RECOMPUTE
    assert (group.status, group.waiting_since) == (Status.WAITING, 3.0)
    assert (plan.preempted, plan.swapped_out) == ([group], [])
    assert (plan.sequences, plan.num_tokens) == (other.live, [1])
    assert group.live[0].num_scheduled == 0
    assert cache.num_free == 5


def test_give_up_frees_what_a_group_holds_and_says_why() -> None:
    cache, plan = make_cache(), Schedule()
    group = running_group(cache, 8, plan)
    Preemptor(cache, RECOMPUTE).give_up(plan, group, "it is too large")
    assert (plan.ignored, plan.sequences) == ([(group, "it is too large")], [])
    assert cache.num_free == 8


def test_a_group_has_outgrown_the_cache_if_it_could_not_grow_alone() -> None:
    cache, plan = make_cache(num_blocks=3), Schedule()
    group = running_group(cache, 10, plan)
    preemptor = Preemptor(cache, RECOMPUTE)
    assert not preemptor.outgrew_cache(group)
    group.live[0].num_scheduled = 12
    assert preemptor.outgrew_cache(group)


class TestReservedBlocks:
    def test_nothing_is_reserved_by_default(self) -> None:
        cache = make_cache()
        preemptor = Preemptor(cache, RECOMPUTE)
        group, other = make_group(9), running_group(cache, 8, Schedule())
        assert preemptor.lifetime(group) == preemptor.outstanding([other]) == 0
        assert preemptor.blocks_to_admit(group, [other]) == 3
        assert preemptor.refuse(group, 0) is None

    def test_to_admit_a_group_takes_its_lifetime_and_what_others_have_yet_to_get(self) -> None:
        cache = make_cache()
        preemptor = Preemptor(cache, Always(PreemptionMode.RECOMPUTE, 16))
        group, other = make_group(9), running_group(cache, 8, Schedule())
        assert preemptor.lifetime(group) == 4
        assert preemptor.outstanding([other]) == 1
        assert preemptor.blocks_to_admit(group, [other]) == 5

    def test_full_blocks_of_the_prompt_are_shared(self) -> None:
        preemptor = Preemptor(make_cache(), Always(PreemptionMode.RECOMPUTE, 16))
        group = make_group(9, n=3)
        assert preemptor.lifetime(group) == 2 + 3 * 2
        assert preemptor.refuse(group, 8) is None
        assert "8 blocks, 7 can be given" in (preemptor.refuse(group, 7) or "")
