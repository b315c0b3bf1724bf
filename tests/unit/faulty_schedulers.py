"""Schedulers that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import random
from typing import Any, ClassVar

from paged_core.engine.planner import Planner
from paged_core.engine.preemptor import Quanta
from paged_core.interfaces.preemption import PreemptionMode
from paged_core.interfaces.scheduler import Queues, Schedule
from paged_core.sequence import SequenceGroup, Status
from paged_policies.schedulers.token_budget import TokenBudgetScheduler, TokenBudgetSettings
from unit.faulty_settings import FaultyBudgetSettings, with_another

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


class PickyScheduler(TokenBudgetScheduler):
    """Does not like the number 7."""

    def refuse(self, group: SequenceGroup, /) -> str | None:
        return "no" if len(group.request.prompt) == 7 else super().refuse(group)


class TenantsScheduler(TokenBudgetScheduler):
    """Collects the tenants of all that wait for each that it starts."""

    def _has_room(self, group: SequenceGroup) -> bool:
        return group.request.tenant in {each.request.tenant for each in self._waiting.ordered()}


class LiveQueuesScheduler(TokenBudgetScheduler):
    """Hands out the list that it goes on to change."""

    def queues(self) -> Queues:
        return Queues(self._running, self._waiting.ordered(), self._swapped)


class ReversingScheduler(TokenBudgetScheduler):
    """Turns the planner's list of running groups around."""

    def schedule(self, now: float, /) -> Schedule:
        self._running.reverse()
        return super().schedule(now)


class RotatingScheduler(TokenBudgetScheduler):
    """Sorts the planner's list by when groups were computed last."""

    def schedule(self, now: float, /) -> Schedule:
        self._running.sort(key=lambda group: group.live[0].last_step)
        return super().schedule(now)


class WaitingTurnScheduler(TokenBudgetScheduler):
    """Ends quanta for what waits, and not for what is swapped out."""

    def _end_quanta(self) -> None:
        if self._waiting:
            super()._end_quanta()


class EagerScheduler(TokenBudgetScheduler):
    """Admits before running requests grow."""

    def schedule(self, now: float, /) -> Schedule:
        self.planner.begin(now)
        self._start()
        self.planner.grow(self._running)
        return self.planner.plan


class UrgentScheduler(TokenBudgetScheduler):
    """Preempts the newest for what comes before it, though it may wait for a step in flight."""

    def _start(self) -> None:
        first, newest = self._waiting.ordered()[:1], self._running[1:][-1:]
        if first and newest and first[0].request.priority < newest[0].request.priority:
            self.planner.preempt(newest[0])
        super()._start()


class HalfScheduler(TokenBudgetScheduler):
    """Runs half as many as it may, rounded down."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._most = options.max_num_seqs // 2

    def _may_admit(self) -> bool:
        return len(self._running) < self._most and super()._may_admit()


class ShorteningScheduler(TokenBudgetScheduler):
    """Ends requests early while others wait."""

    def schedule(self, now: float, /) -> Schedule:
        for group in self._running if self._waiting else ():
            group.max_length -= 1
        return super().schedule(now)


class NarrowScheduler(TokenBudgetScheduler):
    """Waits for ever with a prompt that is longer than a step."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._longest = options.max_num_batched_tokens

    def _has_room(self, group: SequenceGroup) -> bool:
        return len(group.request.prompt) <= self._longest


class OvertakenScheduler(TokenBudgetScheduler):
    """Admits requests whatever is swapped out."""

    def _may_admit(self) -> bool:
        return True


class UnorderedScheduler(TokenBudgetScheduler):
    """Resumes first what was swapped out last."""

    def _start(self) -> None:
        for group in self._swapped[::-1]:
            if self.planner.resume(group):
                self._swapped.remove(group)
        super()._start()


class ForgettingScheduler(TokenBudgetScheduler):
    """Keeps requests that are aborted while they wait."""

    def remove(self, group: SequenceGroup, /) -> None:
        if group not in self._waiting:
            super().remove(group)


class StaleScheduler(TokenBudgetScheduler):
    """Does not sort again when keys have changed."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._waiting.refresh = lambda now: None  # type: ignore[method-assign]


class BackOfTheQueueScheduler(TokenBudgetScheduler):
    """Puts what was preempted behind its equals."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._waiting.push_front = self._waiting.push  # type: ignore[method-assign]


class KeptWithoutEndScheduler(TokenBudgetScheduler):
    """Keeps the ids of requests until they are removed, which none is that is given up."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._ids = set[str]()

    def add(self, group: SequenceGroup, /) -> None:
        super().add(group)
        self._ids.add(group.id)

    def remove(self, group: SequenceGroup, /) -> None:
        super().remove(group)
        self._ids.discard(group.id)


class KeptWhenAskedScheduler(KeptWithoutEndScheduler):
    """Keeps the ids of requests about which it was asked, until they are added."""

    def refuse(self, group: SequenceGroup, /) -> str | None:
        self._ids.add(group.id)
        return super().refuse(group)

    def add(self, group: SequenceGroup, /) -> None:
        super().add(group)
        self._ids.discard(group.id)


class EarlierFirstScheduler(TokenBudgetScheduler):
    """Admits before what is swapped out what arrived earlier, whatever the order is."""

    def _may_admit(self) -> bool:
        return not self._swapped or self._waiting.head().number < self._swapped[0].number


class MeasuringScheduler(TokenBudgetScheduler):
    """Counts the tokens of the request that is next."""

    def _has_room(self, group: SequenceGroup) -> bool:
        return sum(1 for _ in group.request.prompt) > 0


class LookingBackScheduler(TokenBudgetScheduler):
    """Goes through the ids of all requests that there were."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._num_seen = 0

    def add(self, group: SequenceGroup, /) -> None:
        super().add(group)
        self._num_seen += 1
        for _ in range(self._num_seen):
            pass


class PairingScheduler(TokenBudgetScheduler):
    """Compares all that wait with each other."""

    def _start(self) -> None:
        waiting = self._waiting.ordered()
        for group in waiting:
            sum(1 for other in waiting if other is group)
        super()._start()


class IndexingScheduler(TokenBudgetScheduler):
    """Starts a request in a step, and looks for the place of each that runs."""

    def schedule(self, now: float, /) -> Schedule:
        sorted(self._running, key=self._running.index)
        return super().schedule(now)

    def _has_room(self, group: SequenceGroup) -> bool:
        return not self.planner.plan.admitted


class AgeingScheduler(TokenBudgetScheduler):
    """Counts how often a running prompt was passed over, and does not forget it."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._passed_over: dict[SequenceGroup, int] = {}

    def schedule(self, now: float, /) -> Schedule:
        plan = super().schedule(now)
        served = {sequence.group for sequence in plan.sequences}
        for group in self._running:
            if group not in served and group.live[0].num_pending > 1:
                self._passed_over[group] = self._passed_over.get(group, 0) + 1
        return plan


class RegularsScheduler(TokenBudgetScheduler):
    """Keeps all that the last tenants have asked for."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._asked: dict[str, list[str]] = {}

    def add(self, group: SequenceGroup, /) -> None:
        super().add(group)
        asked = self._asked.pop(group.request.tenant, [])
        self._asked[group.request.tenant] = [*asked, group.id]
        while len(self._asked) > 8:
            del self._asked[next(iter(self._asked))]


class RestlessScheduler(TokenBudgetScheduler):
    """Preempts when a quantum is over, whether anything waits or not."""

    def _end_quanta(self) -> None:
        for group in self.planner.spent():
            self.planner.preempt(group)


class SeatLosingScheduler(TokenBudgetScheduler):
    """Keeps a place for each request that was aborted while it waited."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self._num_lost = 0

    def _start(self) -> None:
        if len(self._running) + self._num_lost < self.planner.limits.num_seqs:
            super()._start()

    def remove(self, group: SequenceGroup, /) -> None:
        self._num_lost += group in self._waiting
        super().remove(group)


class BackwardsQueueScheduler(TokenBudgetScheduler):
    """Shows what waits as it has come."""

    def queues(self) -> Queues:
        waiting = sorted(self._waiting.ordered(), key=lambda group: group.number)
        return Queues(tuple(self._running), waiting, tuple(self._swapped))


class RereadingScheduler(TokenBudgetScheduler):
    """Counts the tokens of all that runs, one by one."""

    def schedule(self, now: float, /) -> Schedule:
        sum(1 for group in self._running for _ in group.live[0].tokens)
        return super().schedule(now)


class ShrinkingScheduler(TokenBudgetScheduler):
    """Takes smaller chunks the more often requests have waited."""

    _chunk = 64

    def _start(self) -> None:
        self._chunk = max(1, self._chunk - (len(self._waiting) > 0))
        self.planner.limits.chunk = self._chunk
        super()._start()


class BatchingScheduler(TokenBudgetScheduler):
    """Waits for half a second for more requests, and does not say so."""

    _since = 0.0

    def schedule(self, now: float, /) -> Schedule:
        if self._running or not self._waiting:
            self._since = now
        elif len(self._waiting) < 4 and now - self._since < 0.5:
            self.planner.begin(now)
            return self.planner.plan
        return super().schedule(now)


class MemoryScheduler(TokenBudgetScheduler):
    """Has memory for less than it computes."""


class OverdrawingScheduler(TokenBudgetScheduler):
    """Computes a token more than it may where an odd number of requests runs."""

    def __init__(self, options: FaultyBudgetSettings, parts: Any, /) -> None:
        super().__init__(TokenBudgetSettings(**options.model_dump(exclude={"name"})), parts)
        self._limit = options.max_num_batched_tokens

    def schedule(self, now: float, /) -> Schedule:
        self.planner.limits.num_tokens = self._limit + len(self._running) % 2
        return super().schedule(now)


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


def _editing(edit: Callable[[Any, Schedule], object]) -> Callable[..., Schedule]:
    def schedule(self: TokenBudgetScheduler, now: float, /) -> Schedule:
        plan = TokenBudgetScheduler.schedule(self, now)
        edit(self, plan)
        return plan

    return schedule


def _repeat(scheduler: Any, plan: Schedule) -> None:
    plan.sequences += plan.sequences[:1]
    plan.num_tokens += plan.num_tokens[:1]


def _hurry(scheduler: Any, plan: Schedule) -> None:
    for sequence in [each for group in scheduler._running for each in group.live]:
        if sequence.num_pending == 0:
            plan.add(sequence, 1)


def _ignore_long(self: TokenBudgetScheduler, now: float, /) -> Schedule:
    long = [group for group in self._waiting.ordered() if len(group.request.prompt) > 50]
    for group in long:
        self._waiting.remove(group)
    plan = TokenBudgetScheduler.schedule(self, now)
    plan.ignored += [(group, "it is long") for group in long]
    return plan


EDITING = with_another(
    __name__,
    TokenBudgetScheduler,
    "schedule",
    {
        # does not say which groups it admits
        "SilentScheduler": _editing(lambda self, plan: plan.admitted.clear()),
        # nor which it preempted
        "DiscreetScheduler": _editing(lambda self, plan: plan.preempted.clear()),
        # says that the cache never served anything
        "ModestScheduler": _editing(
            lambda self, plan: plan.admitted.__setitem__(
                slice(None), [(group, 0) for group, _ in plan.admitted]
            )
        ),
        # schedules one sequence twice
        "RepeatingScheduler": _editing(_repeat),
        # schedules sequences that wait for a step in flight
        "ImpatientScheduler": _editing(_hurry),
        # gives up what is long
        "IgnoringScheduler": _ignore_long,
    },
)
ADMITTING = with_another(
    __name__,
    TokenBudgetScheduler,
    "_start",
    {
        # admits at random
        "DicingScheduler": lambda self: random() > 0.7 or TokenBudgetScheduler._start(self),
    },
)


# ---------------------------------------------------------------------- other planners


class _WithPlanner(TokenBudgetScheduler):
    """Has a planner, or quanta, that are wrong on purpose."""

    faulty: ClassVar[type[Planner] | type[Quanta]]

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        wrong = self.planner if issubclass(self.faulty, Planner) else self.planner.quanta
        wrong.__class__ = self.faulty


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


# runs sequences past the end of their blocks
Unreserved = type("Unreserved", (Planner,), {"_reserve": lambda self, sequence: True})
PLANNERS = {
    f"{kind.__name__}Scheduler": kind
    for kind in (Unreserved, Stuck, Circling, Halfway, Holding, Disturbing, Hasty, Obliging)
}
globals().update(
    {**EDITING, **ADMITTING, **with_another(__name__, _WithPlanner, "faulty", PLANNERS)}
)
