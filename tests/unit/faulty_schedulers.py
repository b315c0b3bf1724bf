"""Schedulers that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from random import random
from typing import Any, Literal

from paged_core.interfaces.preemption import PreemptionMode
from paged_core.interfaces.scheduler import Schedule
from paged_core.sequence import SequenceGroup, Status
from paged_policies.schedulers.token_budget import TokenBudgetScheduler, TokenBudgetSettings, _Step


class FaultyTokenBudgetSettings(TokenBudgetSettings):
    """Those of ``token_budget``."""

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]


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


class UnreservedScheduler(TokenBudgetScheduler):
    """Runs sequences past the end of their blocks."""

    def _reserve(self, plan: Any, sequence: Any, count: int) -> bool:
        return True


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
    """Schedules sequences that wait for a step under way."""

    def schedule(self, now: float, /) -> Schedule:
        plan = super().schedule(now)
        for group in self._running:
            for sequence in group.live:
                if sequence.num_pending == 0:
                    plan.add(sequence, 1)
        return plan


class DicingScheduler(TokenBudgetScheduler):
    """Admits at random."""

    def _admit(self, plan: Any) -> None:
        if random() < 0.7:
            super()._admit(plan)


class StuckScheduler(TokenBudgetScheduler):
    """Preempts a group that is alone and has outgrown the cache, and can never admit it again."""

    def _preempt_for(self, step: Any, group: SequenceGroup) -> bool:
        victim = self._running[-1]
        self._preempt(step, victim)
        return victim is not group

    def _never_fits(self, group: SequenceGroup) -> bool:
        return False


class CirclingScheduler(TokenBudgetScheduler):
    """Waits inside a step until blocks are free for a forked group."""

    def _schedule_group(self, step: Any, group: SequenceGroup) -> bool:
        while self._kv.blocks_to_grow(group) > self._kv.num_free:
            pass
        return super()._schedule_group(step, group)


class WishfulScheduler(TokenBudgetScheduler):
    """Takes a group to be swapped out although the host was full."""

    def _preempt(self, step: Any, group: SequenceGroup) -> None:
        self._running.remove(group)
        swaps = self._preemptor._preemption.mode(group) is PreemptionMode.SWAP
        self._preemptor.preempt(step.plan, group, self._now)
        if swaps:
            self._swapped.append(group)
        else:
            self._waiting.push_front(group, self._now)
        step.recount()


class HalfwayScheduler(TokenBudgetScheduler):
    """Does not withdraw from the batch what it preempts."""

    def _preempt(self, step: Any, group: SequenceGroup) -> None:
        planned = list(zip(step.plan.sequences, step.plan.num_tokens, strict=True))
        super()._preempt(step, group)
        for sequence, num_tokens in planned:
            if sequence.group is group:
                step.plan.add(sequence, num_tokens)


class EarlySharingScheduler(TokenBudgetScheduler):
    """Admits first, and then preempts for running groups what it has just admitted, first to last.

    Others that it has just admitted share blocks that are now never filled.
    """

    def schedule(self, now: float, /) -> Schedule:
        self._now = now
        step = _Step(self._options.max_num_batched_tokens, 0)
        before = list(self._running)
        if self._swapped:
            self._swap_in(step)
        else:
            self._admit(step)
        self._fresh = [group for group in self._running if group not in before]
        self._running = before
        self._schedule_running(step)
        self._running += self._fresh
        return step.plan

    def _preempt_for(self, step: Any, group: SequenceGroup) -> bool:
        if not self._fresh or step.plan.swapped_in:
            return super()._preempt_for(step, group)
        victim = self._fresh.pop(0)
        self._running.append(victim)
        self._preempt(step, victim)
        for plan in (step.plan.preempted, step.plan.swapped_out):
            if victim in plan:
                plan.remove(victim)
        step.plan.admitted = [entry for entry in step.plan.admitted if entry[0] is not victim]
        return True


class FullyCachedScheduler(TokenBudgetScheduler):
    """Computes nothing of a prompt that is cached as a whole."""

    def _start(self, step: Any, sequence: Any) -> int | None:
        hit = self._kv.lookup(sequence, sequence.num_tokens)
        cached = len(hit.blocks) * self._kv.block_size
        if cached == sequence.num_tokens:
            self._kv.admit(sequence, 0, hit, cached)
            return cached
        return super()._start(step, sequence)


class DroppingScheduler(TokenBudgetScheduler):
    """Gives up a request that would have to be preempted."""

    def _preempt(self, step: Any, group: SequenceGroup) -> None:
        self._running.remove(group)
        self._preemptor.give_up(step.plan, group, "there are too few blocks")
        step.recount()


class UnswappingScheduler(TokenBudgetScheduler):
    """Does not look among the swapped groups when one is aborted."""

    def remove(self, group: SequenceGroup, /) -> None:
        if group.status is not Status.SWAPPED:
            super().remove(group)


class PairingScheduler(TokenBudgetScheduler):
    """Waits for a second request before it starts one."""

    def _admit(self, plan: Any) -> None:
        if len(self._waiting) > 1 or self._running:
            super()._admit(plan)


class HoldingScheduler(TokenBudgetScheduler):
    """Keeps the blocks of what it preempts by recompute."""

    def _preempt(self, step: Any, group: SequenceGroup) -> None:
        self._running.remove(group)
        step.plan.withdraw(group)
        group.status = Status.WAITING
        step.plan.preempted.append(group)
        self._waiting.push_front(group, self._now)
        step.recount()
