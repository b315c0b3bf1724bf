"""Schedulers that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from random import random
from typing import Any, ClassVar, Literal

from paged_core.engine.planner import Planner
from paged_core.interfaces.preemption import PreemptionMode
from paged_core.interfaces.scheduler import Schedule
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_policies.schedulers.token_budget import TokenBudgetScheduler, TokenBudgetSettings


class FaultyTokenBudgetSettings(TokenBudgetSettings):
    """Those of ``token_budget``."""

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]


class FaultyPlannerScheduler(TokenBudgetScheduler):
    """Has a planner that is wrong on purpose."""

    faulty: ClassVar[type[Planner]]

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.planner.__class__ = self.faulty


class StarvingScheduler(TokenBudgetScheduler):
    """Never admits the request of lowest priority."""

    def schedule(self, now: float, /) -> Schedule:
        held = [g for g in self._waiting.ordered() if g.request.priority == 2]
        for group in held:
            self._waiting.remove(group)
        plan = super().schedule(now)
        for group in held:
            self._waiting.push(group, now)
        return plan


class GreedyScheduler(TokenBudgetScheduler):
    """Schedules one and a half times the token budget."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        more = options.max_num_batched_tokens * 3 // 2
        super().__init__(options.model_copy(update={"max_num_batched_tokens": more}), parts)


class TooManySequencesScheduler(TokenBudgetScheduler):
    """Runs more sequences than ``max_num_seqs``."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        more = options.max_num_seqs * 2
        super().__init__(options.model_copy(update={"max_num_seqs": more}), parts)


class ForgettingScheduler(TokenBudgetScheduler):
    """Keeps requests that are aborted while they wait."""

    def remove(self, group: SequenceGroup, /) -> None:
        if group not in self._waiting:
            super().remove(group)


class RepeatingScheduler(TokenBudgetScheduler):
    """Schedules one sequence twice."""

    def schedule(self, now: float, /) -> Schedule:
        plan = super().schedule(now)
        plan.sequences += plan.sequences[:1]
        plan.num_tokens += plan.num_tokens[:1]
        return plan


class _Unreserved(Planner):
    def _reserve(self, sequence: SequenceState) -> bool:
        return True


class UnreservedScheduler(FaultyPlannerScheduler):
    """Runs sequences past the end of their blocks."""

    faulty = _Unreserved


class SilentScheduler(TokenBudgetScheduler):
    """Does not say which groups it admits."""

    def schedule(self, now: float, /) -> Schedule:
        plan = super().schedule(now)
        plan.admitted.clear()
        return plan


class ModestScheduler(TokenBudgetScheduler):
    """Says that the cache never served anything."""

    def schedule(self, now: float, /) -> Schedule:
        plan = super().schedule(now)
        plan.admitted = [(group, 0) for group, _ in plan.admitted]
        return plan


class DiscreetScheduler(TokenBudgetScheduler):
    """Does not say which groups it preempted."""

    def schedule(self, now: float, /) -> Schedule:
        plan = super().schedule(now)
        plan.preempted.clear()
        return plan


class UnderstatingScheduler(TokenBudgetScheduler):
    """Says that it runs one sequence at a time, and runs several."""

    @property
    def max_num_seqs(self) -> int:
        return 1


class PickyScheduler(TokenBudgetScheduler):
    """Does not like the number 7."""

    def refuse(self, group: SequenceGroup, /) -> str | None:
        return "no" if len(group.request.prompt) == 7 else super().refuse(group)


class IgnoringScheduler(TokenBudgetScheduler):
    """Gives up what is long."""

    def schedule(self, now: float, /) -> Schedule:
        long = [g for g in self._waiting.ordered() if len(g.request.prompt) > 50]
        for group in long:
            self._waiting.remove(group)
        plan = super().schedule(now)
        plan.ignored += [(group, "it is long") for group in long]
        return plan


class ImpatientScheduler(TokenBudgetScheduler):
    """Schedules sequences that wait for a step in flight."""

    def schedule(self, now: float, /) -> Schedule:
        plan = super().schedule(now)
        for group in self._running:
            for sequence in group.live:
                if sequence.num_pending == 0:
                    plan.add(sequence, 1)
        return plan


class DicingScheduler(TokenBudgetScheduler):
    """Admits at random."""

    def _admit(self) -> None:
        if random() < 0.7:
            super()._admit()


class _Stuck(Planner):
    def _make_way(self, group: SequenceGroup) -> bool:
        victim = self.running[-1]
        self.preempt(victim)
        self.is_short = True
        return victim is not group

    def never_fits(self, group: SequenceGroup) -> bool:
        return False


class StuckScheduler(FaultyPlannerScheduler):
    """Preempts a group that is alone and has outgrown the cache, and can never admit it again."""

    faulty = _Stuck


class CirclingPlanner(Planner):
    def preempt_for(self, group: SequenceGroup, num_tokens: int = 1) -> bool:
        while len(group.live) > 1 and self.kv_cache.blocks_to_grow(group) > self.kv_cache.num_free:
            pass
        return super().preempt_for(group, num_tokens)


class CirclingScheduler(FaultyPlannerScheduler):
    """Waits inside a step until blocks are free for a forked group."""

    faulty = CirclingPlanner


class WishfulScheduler(TokenBudgetScheduler):
    """Takes a group to be swapped out although the host was full."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._preemption = parts.preemption

    def _requeue(self, group: SequenceGroup) -> None:
        if self._preemption.mode(group) is PreemptionMode.SWAP:
            self._swapped.append(group)
        else:
            self._waiting.push_front(group, self.planner.now)


class _Halfway(Planner):
    def preempt(self, group: SequenceGroup) -> None:
        planned = list(zip(self.plan.sequences, self.plan.num_tokens, strict=True))
        super().preempt(group)
        for sequence, num_tokens in planned:
            if sequence.group is group:
                self._add(sequence, num_tokens)


class HalfwayScheduler(FaultyPlannerScheduler):
    """Does not withdraw from the batch what it preempts."""

    faulty = _Halfway


class _EarlySharing(Planner):
    fresh: list[SequenceGroup]

    def _make_way(self, group: SequenceGroup) -> bool:
        if not self.fresh or self.plan.swapped_in:
            return super()._make_way(group)
        victim = self.fresh.pop(0)
        self.preempt(victim)
        for groups in (self.plan.preempted, self.plan.swapped_out):
            if victim in groups:
                groups.remove(victim)
        self.plan.admitted = [entry for entry in self.plan.admitted if entry[0] is not victim]
        return True


class EarlySharingScheduler(FaultyPlannerScheduler):
    """Admits first, and then preempts for running groups what it has just admitted, first to last.

    Others that it has just admitted share blocks that are now never filled.
    """

    faulty = _EarlySharing
    planner: _EarlySharing

    def schedule(self, now: float, /) -> Schedule:
        planner, before = self.planner, list(self._running)
        planner.begin(now)
        while self._swapped and planner.resume(self._swapped[0]):
            del self._swapped[0]
        self._admit()
        planner.fresh = [group for group in self._running if group not in before]
        planner._shares = False
        planner.grow(before)
        return planner.plan


class _FullyCached(Planner):
    def _start(self, sequence: SequenceState) -> int | None:
        hit = self.kv_cache.lookup(sequence, sequence.num_tokens)
        cached = len(hit.blocks) * self.kv_cache.block_size
        if cached == sequence.num_tokens:
            self.kv_cache.admit(sequence, 0, hit, cached)
            return cached
        return super()._start(sequence)


class FullyCachedScheduler(FaultyPlannerScheduler):
    """Computes nothing of a prompt that is cached as a whole."""

    faulty = _FullyCached


class _Dropping(Planner):
    def preempt(self, group: SequenceGroup) -> None:
        self.give_up(group, "there are too few blocks")


class DroppingScheduler(FaultyPlannerScheduler):
    """Gives up a request that would have to be preempted."""

    faulty = _Dropping


class UnswappingScheduler(TokenBudgetScheduler):
    """Does not look among the swapped groups when one is aborted."""

    def remove(self, group: SequenceGroup, /) -> None:
        if group.status is not Status.SWAPPED:
            super().remove(group)


class PairingScheduler(TokenBudgetScheduler):
    """Waits for a second request before it starts one."""

    def _admit(self) -> None:
        if len(self._waiting) > 1 or self._running:
            super()._admit()


class _Holding(Planner):
    def preempt(self, group: SequenceGroup) -> None:
        self.running.remove(group)
        self.plan.withdraw(group)
        group.status = Status.WAITING
        self.plan.preempted.append(group)
        self._requeue(group)


class HoldingScheduler(FaultyPlannerScheduler):
    """Keeps the blocks of what it preempts by recompute."""

    faulty = _Holding
