"""Behaviour of planner and preemptor beyond the decisions of the schedulers that have them."""

from __future__ import annotations

import pytest

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.contexts import OrderContext, SchedulerContext, VictimContext
from paged_core.engine.planner import Planner
from paged_core.engine.preemptor import Preemptor
from paged_core.errors import PluginError
from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.interfaces.scheduler import Queues, Schedule, Scheduler
from paged_core.sequence import SequenceGroup
from paged_policies.orders.fcfs import FcfsOrder, FcfsSettings
from paged_policies.victims.newest import NewestSettings, NewestVictim
from paged_testing.engines import build_memory_engine
from paged_testing.workloads import simple_request
from unit.block_tables import make_cache, make_group, started


class Recompute(Preemption):
    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.RECOMPUTE


class Held:
    """A planner of up to eight sequences, and the groups that it hands back."""

    def __init__(self, cache: KVCache, num_tokens: int = 100) -> None:
        preemption = Recompute()
        context = SchedulerContext(
            kv_cache=cache,
            queue_order=FcfsOrder(FcfsSettings(), OrderContext(kv_cache=cache)),
            victim=NewestVictim(NewestSettings(), VictimContext(kv_cache=cache)),
            preemption=preemption,
            preemptor=Preemptor(cache, preemption),
            max_model_len=64,
        )
        self.running: list[SequenceGroup] = []
        self.waiting: list[SequenceGroup] = []
        self.planner = Planner(
            context, self.running, self.waiting.append, num_tokens=num_tokens, num_seqs=8
        )

    def computed(self, *groups: SequenceGroup) -> None:
        """Admit groups, and compute what is planned of them and a token after it."""
        self.planner.begin(0.0)
        assert all(self.planner.admit(group) for group in groups)
        plan = self.planner.plan
        for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
            sequence.num_scheduled += num_tokens
            sequence.num_computed = sequence.num_scheduled
            sequence.tokens.append(0)
        self.planner.kv_cache.take_changes()
        self.planner.begin(1.0)


def batch(plan: Schedule) -> list[tuple[SequenceGroup, int]]:
    return [(s.group, n) for s, n in zip(plan.sequences, plan.num_tokens, strict=True)]


def test_a_group_is_in_the_batch_once_however_often_it_is_named() -> None:
    held = Held(make_cache())
    first, second = make_group(5), make_group([9] * 6)
    held.computed(first, second)
    held.planner.grow([second])
    held.planner.grow([first, second])
    assert batch(held.planner.plan) == [(second, 1), (first, 1)]


class TestAfterAnAdmissionThatSharesWhatTheStepFills:
    @pytest.fixture
    def held(self) -> Held:
        """Two equal prompts of two full blocks and a token in one step, and one that decodes."""
        held = Held(make_cache(num_blocks=6))
        old = make_group([7] * 8)
        held.computed(old)
        equal = [make_group(list(range(9))) for _ in range(2)]
        assert all(held.planner.admit(group) for group in equal)
        assert [n for _, n in batch(held.planner.plan)] == [9, 1]
        return held

    def test_no_group_of_the_batch_may_be_preempted(self, held: Held) -> None:
        with pytest.raises(PluginError, match="preempt before admitting"):
            held.planner.preempt(held.running[1])
        assert len(held.running) == 3

    def test_a_group_that_finds_no_block_waits_for_the_next_step(self, held: Held) -> None:
        assert held.planner.kv_cache.num_free == 0
        held.planner.grow(held.running)
        assert [n for _, n in batch(held.planner.plan)] == [9, 1]
        assert not held.planner.plan.preempted
        assert len(held.running) == 3


class Bare(Scheduler):
    """Defines no more than it must, and has no planner."""

    def add(self, group: SequenceGroup, /) -> None:
        raise AssertionError

    def remove(self, group: SequenceGroup, /) -> None:
        raise AssertionError

    def schedule(self, now: float, /) -> Schedule:
        return Schedule()

    def queues(self) -> Queues:
        return Queues((), ())


def test_a_scheduler_without_a_planner_is_told_to_define_its_length_cap() -> None:
    engine = build_memory_engine()
    engine.scheduler = Bare()
    assert (len(engine.scheduler), engine.scheduler.max_num_seqs) == (0, None)
    with pytest.raises(PluginError, match="define length_cap, or set planner"):
        engine.add(simple_request("A", 5, 2))


class Always(Preemption):
    """One mode, and so many tokens to reserve."""

    def __init__(self, mode: PreemptionMode, num_tokens: int | None = None) -> None:
        self._mode, self._num_tokens = mode, num_tokens

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return self._mode

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        return self._num_tokens


RECOMPUTE, SWAP = Always(PreemptionMode.RECOMPUTE), Always(PreemptionMode.SWAP)


class TestReservedBlocks:
    def test_nothing_is_reserved_by_default(self) -> None:
        cache = make_cache()
        preemptor = Preemptor(cache, RECOMPUTE)
        group, other = make_group(9), started(cache, 12)
        assert preemptor.lifetime(group) == preemptor.outstanding([other]) == 0
        assert preemptor.blocks_to_admit(group, [other]) == 3
        assert preemptor.refuse(group, 0) is None

    def test_to_admit_a_group_takes_its_lifetime_and_what_others_have_yet_to_get(self) -> None:
        cache = make_cache()
        preemptor = Preemptor(cache, Always(PreemptionMode.RECOMPUTE, 16))
        group, other = make_group(9), started(cache, 12)
        assert preemptor.lifetime(group) == 4
        assert preemptor.outstanding([other]) == 1
        assert preemptor.blocks_to_admit(group, [other]) == 5

    def test_full_blocks_of_the_prompt_are_shared(self) -> None:
        preemptor = Preemptor(make_cache(), Always(PreemptionMode.RECOMPUTE, 16))
        group = make_group(9, n=3)
        assert preemptor.lifetime(group) == 2 + 3 * 2
        assert preemptor.refuse(group, 8) is None
        assert "8 blocks, 7 can be given" in (preemptor.refuse(group, 7) or "")
