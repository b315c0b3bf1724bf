"""Orders whose quanta are wrong on purpose, and schedulers that honour quanta wrongly."""

from __future__ import annotations

from collections.abc import Iterable
from random import randrange
from typing import Any

from paged_core.engine.quanta import Quanta
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.sequence import SequenceGroup
from paged_policies.schedulers.token_budget import TokenBudgetScheduler


class _Order(QueueOrder):
    def __init__(self, options: Any, parts: Any, /) -> None:
        self.served_tokens: dict[str, int] = {}
        self.asked = 0

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return group.number

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.served_tokens[group.id] = self.served_tokens.get(group.id, 0) + num_tokens

    def left(self, group: SequenceGroup, /) -> None:
        self.served_tokens.pop(group.id, None)


class MarkingQuantum(_Order):
    """Notes on a group that it has been asked about."""

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        group.num_preemptions += 1
        return False


class CountingQuantum(_Order):
    """Over every other time that it is asked."""

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        self.asked += 1
        return self.asked % 2 == 0


class RollingQuantum(_Order):
    """Rolls dice once, when it is made."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.salt = randrange(1 << 30)

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        return bool((group.number + 1) * self.salt >> 7 & 1)


class WordlessQuantum(_Order):
    """Answers with a number of tokens."""

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        return self.served_tokens.get(group.id, 0)  # type: ignore[return-value]


class NarrowQuantum(_Order):
    """Raises for a group that was not served yet."""

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        return self.served_tokens[group.id] > 4


class HastyScheduler(TokenBudgetScheduler):
    """Preempts a group whose prompt is still being computed."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.planner.quanta = _Hasty(parts.queue_order, parts.preemptor)


class _Hasty(Quanta):
    def spent(self, running: Iterable[SequenceGroup], now: float) -> list[SequenceGroup]:
        rule = self._rule
        return [group for group in running if rule is not None and rule.quantum_over(group, now)]


class ObligingScheduler(TokenBudgetScheduler):
    """Preempts for the first waiting group, even if it does not come before."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.planner.quanta = _Obliging(parts.queue_order, parts.preemptor)


class _Obliging(Quanta):
    def behind(
        self, first: SequenceGroup, spent: Iterable[SequenceGroup], now: float
    ) -> list[SequenceGroup]:
        return list(spent)


class RestlessScheduler(TokenBudgetScheduler):
    """Preempts when a quantum is over, whether anything waits or not."""

    def _end_quanta(self) -> None:
        for group in self.planner.spent():
            self.planner.preempt(group)
