"""Schedulers that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from random import random
from typing import Any, Literal

from paged_core.interfaces.scheduler import Schedule
from paged_core.sequence import SequenceGroup
from paged_policies.schedulers.token_budget import TokenBudgetScheduler, TokenBudgetSettings


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
