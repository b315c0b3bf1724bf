"""Orders, victims and preemptions that are wrong on purpose: the conformance class of the slot must
catch each."""

from __future__ import annotations

from collections.abc import Sequence
from random import choice, randrange
from typing import Any, ClassVar

from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.interfaces.victim import Victim
from paged_core.sequence import SequenceGroup


class _Order(QueueOrder):
    def __init__(self, options: Any, parts: Any, /) -> None:
        self.asked = 0


class IncomparableOrder(_Order):
    """Compares tenants with nothing."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return group.request.deadline


class DriftingOrder(_Order):
    """Says that it is stable, but ages."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return group.request.priority - now


class CountingOrder(_Order):
    """Another key each time it is asked."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        self.asked += 1
        return -self.asked


class MarkingOrder(_Order):
    """Notes on a group that it has been seen."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        group.num_cached = 0
        return group.number


class RollingOrder(_Order):
    """Rolls dice once, when it is made."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.salt = randrange(1 << 30)

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return group.number ^ self.salt


class ReversedOrder(_Order):
    """Last come, first served."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return -group.number


class _Victim(Victim):
    def __init__(self, options: Any, parts: Any, /) -> None:
        self.kv_cache = parts.kv_cache


class OldestVictim(_Victim):
    """Not the newest."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        return candidates[0]


class PoppingVictim(_Victim):
    """Changes the list that it is shown."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        return candidates.pop()  # type: ignore[attr-defined, no-any-return]


class ActingVictim(_Victim):
    """Frees the blocks itself."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        self.kv_cache.release_group(candidates[-1])
        return candidates[-1]


class ForgetfulVictim(_Victim):
    """Chooses no group if there is only one candidate."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        return candidates[-2]


class LateVictim(_Victim):
    """Chooses among those that it was shown the last time."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.shown: Sequence[SequenceGroup] = ()

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        chosen = self.shown[0] if self.shown else candidates[-1]
        self.shown = list(candidates)
        return chosen


class CountingVictim(_Victim):
    """Counts preemptions, as the engine does."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        candidates[-1].num_preemptions += 1
        return candidates[-1]


class RollingVictim(_Victim):
    """Uses random numbers without a seed."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        return choice(list(candidates))


class _Preemption(Preemption):
    def __init__(self, options: Any, parts: Any, /) -> None:
        self.asked = 0

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.RECOMPUTE


class SecretSwap(_Preemption):
    """Swaps, but says that it never does."""

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.SWAP


class WordlessPreemption(_Preemption):
    """Answers with something that is no mode."""

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return "drop"  # type: ignore[return-value]


class AlternatingPreemption(_Preemption):
    """Swaps every other time that it is asked."""

    may_swap = True

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        self.asked += 1
        return PreemptionMode.SWAP if self.asked % 2 else PreemptionMode.RECOMPUTE


class TouchingPreemption(_Preemption):
    """Counts preemptions, as the engine does."""

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        group.num_preemptions += 1
        return PreemptionMode.RECOMPUTE


class ExcessivePreemption(_Preemption):
    """Reserves more than a sequence can come to."""

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        return group.max_length + 8


class HoardingPreemption(_Preemption):
    """Reserves more than there is."""

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        return 10**9


class StingyPreemption(_Preemption):
    """Reserves less than what a group has already."""

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        return 1


class RollingPreemption(_Preemption):
    """Rolls dice once, when it is made."""

    may_swap = True

    def __init__(self, options: Any, parts: Any, /) -> None:
        self.salt = randrange(1 << 30)

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        even = (group.number + 1) * self.salt >> 7 & 1
        return PreemptionMode.SWAP if even else PreemptionMode.RECOMPUTE


class NarrowPreemption(_Preemption):
    """Raises for a group that holds no blocks."""

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        return len(group.live[0].tokens) if group.live[0].table.blocks[0] >= 0 else None


class SearchingPreemption(_Preemption):
    """Looks for ever for a length that suits a forked group."""

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        while group.num_seqs > 1:
            self.asked += 1
        return PreemptionMode.RECOMPUTE


class FirstPreemption(_Preemption):
    """Swaps the first group that it is asked about."""

    may_swap = True
    first: SequenceGroup | None = None

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        self.first = self.first or group
        return PreemptionMode.SWAP if group is self.first else PreemptionMode.RECOMPUTE


class SortingVictim(_Victim):
    """Sorts the list that it is shown."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        candidates.sort(key=lambda group: -group.number)  # type: ignore[attr-defined]
        return candidates[0]


class SparingVictim(_Victim):
    """Chooses only among those that were not preempted yet."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        return [group for group in candidates if not group.num_preemptions][-1]


class WaitingVictim(_Victim):
    """Waits until one has generated something."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        while not any(group.live[0].output for group in candidates):
            pass
        return candidates[-1]


class MeanVictim(_Victim):
    """Divides by the distance of the best and the worst."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        held = [len(group.live[0].table.blocks) for group in candidates]
        scores = [count / (max(held) - min(held)) for count in held]
        return candidates[scores.index(max(scores))]


class OneSidedOrder(_Order):
    """Counts what was served, but is not told when a group has left."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return (self.asked, group.number)

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.asked += num_tokens


class AssumingOrder(_Order):
    """Assumes that what leaves was served."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        self.tokens: dict[str, int] = {}

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return group.number

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.tokens[group.id] = self.tokens.get(group.id, 0) + num_tokens

    def left(self, group: SequenceGroup, /) -> None:
        del self.tokens[group.id]


class RememberingOrder(AssumingOrder):
    """Never forgets a group."""

    def left(self, group: SequenceGroup, /) -> None:
        self.tokens[group.id] = 0


class SharedOrder(_Order):
    """Counts its keys with the class."""

    made: ClassVar[list[int]] = []

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        self.made.append(group.number)
        return (group.number * len(self.made)) % 7


class WaitingOrder(_Order):
    """Looks for ever for a deadline."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        while group.request.deadline is None and group.request.priority:
            self.asked += 1
        return group.number


class FrozenOrder(_Order):
    """Raises for a group that runs."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        assert group.admitted_at is None and not group.live[0].table.blocks, "it runs already"
        return group.number
