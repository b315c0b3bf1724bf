"""Schedulers that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import random
from typing import Any, ClassVar

from paged_core.engine.planner import Planner
from paged_core.engine.preemptor import Quanta
from paged_core.interfaces.preemption import PreemptionMode
from paged_core.interfaces.scheduler import Schedule
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_policies.schedulers.token_budget import TokenBudgetScheduler
from unit.faulty_settings import with_another

# ---------------------------------------------------------------------- other options and queues


class GreedyScheduler(TokenBudgetScheduler):
    """Schedules twice the token budget."""

    limit = "max_num_batched_tokens"

    def __init__(self, options: Any, parts: Any, /) -> None:
        twice = {self.limit: 2 * getattr(options, self.limit)}
        super().__init__(options.model_copy(update=twice), parts)


class TooManySequencesScheduler(GreedyScheduler):
    """Runs more sequences than ``max_num_seqs``."""

    limit = "max_num_seqs"


class UnderstatingScheduler(TokenBudgetScheduler):
    """Says that it runs one sequence at a time, and runs several."""

    max_num_seqs = 1  # type: ignore[assignment]


class PickyScheduler(TokenBudgetScheduler):
    """Does not like the number 7."""

    def refuse(self, group: SequenceGroup, /) -> str | None:
        return "no" if len(group.request.prompt) == 7 else super().refuse(group)


class ForgettingScheduler(TokenBudgetScheduler):
    """Keeps requests that are aborted while they wait."""

    def remove(self, group: SequenceGroup, /) -> None:
        if group not in self._waiting:
            super().remove(group)


class UnswappingScheduler(TokenBudgetScheduler):
    """Does not look among the swapped groups when one is aborted."""

    def remove(self, group: SequenceGroup, /) -> None:
        if group.status is not Status.SWAPPED:
            super().remove(group)


class DicingScheduler(TokenBudgetScheduler):
    """Admits at random."""

    def _admit(self) -> None:
        if random() < 0.7:
            super()._admit()


class PairingScheduler(TokenBudgetScheduler):
    """Waits for a second request before it starts one."""

    def _admit(self) -> None:
        if len(self._waiting) > 1 or self._running:
            super()._admit()


class RestlessScheduler(TokenBudgetScheduler):
    """Preempts when a quantum is over, whether anything waits or not."""

    def _end_quanta(self) -> None:
        for group in self.planner.spent():
            self.planner.preempt(group)


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


# ---------------------------------------------------------------------- other plans


class _Editing(TokenBudgetScheduler):
    """Changes its plans."""

    edit: Callable[[Schedule], object]

    def schedule(self, now: float, /) -> Schedule:
        plan = super().schedule(now)
        self.edit(plan)
        return plan


EDITING = with_another(
    _Editing,
    "edit",
    {
        # does not say which groups it admits
        "SilentScheduler": lambda self, plan: plan.admitted.clear(),
        # nor which it preempted
        "DiscreetScheduler": lambda self, plan: plan.preempted.clear(),
    },
)


class ModestScheduler(_Editing):
    """Says that the cache never served anything."""

    def edit(self, plan: Schedule) -> None:
        plan.admitted = [(group, 0) for group, _ in plan.admitted]


class RepeatingScheduler(_Editing):
    """Schedules one sequence twice."""

    def edit(self, plan: Schedule) -> None:
        plan.sequences += plan.sequences[:1]
        plan.num_tokens += plan.num_tokens[:1]


class ImpatientScheduler(_Editing):
    """Schedules sequences that wait for a step in flight."""

    def edit(self, plan: Schedule) -> None:
        for group in self._running:
            for sequence in group.live:
                if sequence.num_pending == 0:
                    plan.add(sequence, 1)


class _Withholding(TokenBudgetScheduler):
    """Takes some groups out of the queue while a step is planned."""

    withholds: Callable[[SequenceGroup], bool]

    def schedule(self, now: float, /) -> Schedule:
        held = [group for group in self._waiting.ordered() if self.withholds(group)]
        for group in held:
            self._waiting.remove(group)
        plan = super().schedule(now)
        self.give_back(held, plan, now)
        return plan

    def give_back(self, held: list[SequenceGroup], plan: Schedule, now: float) -> None:
        for group in held:
            self._waiting.push(group, now)


class StarvingScheduler(_Withholding):
    """Never admits the request of lowest priority."""

    def withholds(self, group: SequenceGroup) -> bool:
        return group.request.priority == 2


class IgnoringScheduler(_Withholding):
    """Gives up what is long."""

    def withholds(self, group: SequenceGroup) -> bool:
        return len(group.request.prompt) > 50

    def give_back(self, held: list[SequenceGroup], plan: Schedule, now: float) -> None:
        plan.ignored += [(group, "it is long") for group in held]


# ---------------------------------------------------------------------- other planners


class _WithPlanner(TokenBudgetScheduler):
    """Has a planner, or quanta, that are wrong on purpose."""

    faulty: ClassVar[type[Planner] | type[Quanta]]

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        wrong = self.planner if issubclass(self.faulty, Planner) else self.planner.quanta
        wrong.__class__ = self.faulty


class Unreserved(Planner):
    """Runs sequences past the end of their blocks."""

    def _reserve(self, sequence: SequenceState) -> bool:
        return True


class Stuck(Planner):
    """Preempts a group that is alone and has outgrown the cache, and can never admit it again."""

    def _make_way(self, group: SequenceGroup) -> bool:
        victim = self.running[-1]
        self.preempt(victim)
        self.is_short = True
        return victim is not group

    def begin(self, now: float) -> None:
        super().begin(now)
        self.limits.never_fits = lambda group: False  # type: ignore[method-assign]


class Circling(Planner):
    """Waits inside a step until blocks are free for a forked group."""

    def preempt_for(self, group: SequenceGroup, num_tokens: int = 1) -> bool:
        while len(group.live) > 1 and self.kv_cache.blocks_to_grow(group) > self.kv_cache.num_free:
            pass
        return super().preempt_for(group, num_tokens)


class Halfway(Planner):
    """Does not withdraw from the batch what it preempts."""

    def preempt(self, group: SequenceGroup) -> None:
        planned = list(zip(self.plan.sequences, self.plan.num_tokens, strict=True))
        super().preempt(group)
        for sequence, num_tokens in planned:
            if sequence.group is group:
                self._add(sequence, num_tokens)


class FullyCached(Planner):
    """Computes nothing of a prompt that is cached as a whole."""

    def admit(self, group: SequenceGroup) -> bool:
        first = group.live[0]
        hit = self.kv_cache.lookup(first, first.num_tokens)
        cached = len(hit.blocks) * self.kv_cache.block_size
        if self.is_full or len(group.live) > 1 or cached < first.num_tokens:
            return super().admit(group)
        self.kv_cache.admit(first, 0, hit, cached)
        self.limits.joins(group)
        self.running.append(group)
        self.plan.admitted.append((group, cached))
        return True


class Dropping(Planner):
    """Gives up a request that would have to be preempted."""

    def preempt(self, group: SequenceGroup) -> None:
        self.give_up(group, "there are too few blocks")


class Holding(Planner):
    """Keeps the blocks of what it preempts by recompute."""

    def preempt(self, group: SequenceGroup) -> None:
        self.running.remove(group)
        self.plan.withdraw(group)
        group.status = Status.WAITING
        self.plan.preempted.append(group)
        self._requeue(group)


class Disturbing(Planner):
    """Preempts a group that waits for a step in flight."""

    def _make_way(self, group: SequenceGroup) -> bool:
        victim = (self.running[1:] or self.running)[-1]
        if victim.awaits_step:
            self.preempt(victim)
            return victim is not group
        return super()._make_way(group)


class Hasty(Quanta):
    """Preempts a group whose prompt is still being computed."""

    def spent(self, running: Iterable[SequenceGroup], now: float) -> list[SequenceGroup]:
        rule = self._rule
        return [group for group in running if rule is not None and rule.quantum_over(group, now)]


class Obliging(Quanta):
    """Preempts for the first waiting group, even if it does not come before."""

    def behind(
        self, first: SequenceGroup, spent: Iterable[SequenceGroup], now: float
    ) -> list[SequenceGroup]:
        return list(spent)


PLANNERS = (
    Unreserved,
    Stuck,
    Circling,
    Halfway,
    FullyCached,
    Dropping,
    Holding,
    Disturbing,
    Hasty,
    Obliging,
)
for _kind in PLANNERS:
    globals().update(with_another(_WithPlanner, "faulty", {f"{_kind.__name__}Scheduler": _kind}))
globals().update(EDITING)


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


class EarlySharingScheduler(_WithPlanner):
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
