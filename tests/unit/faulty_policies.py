"""Orders, victims and preemptions that are wrong on purpose: the conformance class of the slot must
catch each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import choice, randrange
from typing import Any, ClassVar

from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.interfaces.victim import Victim
from paged_core.sequence import SequenceGroup
from unit.faulty_settings import with_another

RECOMPUTE, SWAP = PreemptionMode.RECOMPUTE, PreemptionMode.SWAP


class _Policy:
    def __init__(self, options: Any, parts: Any, /) -> None:
        self.asked = count()
        self.salt = randrange(1 << 30)
        """Keys from dice that are rolled once."""
        self.kv_cache = getattr(parts, "kv_cache", None)

    def rolled(self, group: SequenceGroup) -> int:
        return (group.number + 1) * self.salt >> 7 & 1


# ---------------------------------------------------------------------- orders


class _Order(_Policy, QueueOrder):
    pass


ORDERS = with_another(
    _Order,
    "key",
    {
        # of a request without a deadline it cannot be compared
        "IncomparableOrder": lambda self, group, now: group.request.deadline,
        # it says that it is stable, but ages
        "DriftingOrder": lambda self, group, now: group.request.priority - now,
        # another key each time it is asked
        "CountingOrder": lambda self, group, now: -next(self.asked),
        "RollingOrder": lambda self, group, now: group.number ^ self.salt,
        "ReversedOrder": lambda self, group, now: -group.number,
    },
)


class MarkingOrder(_Order):
    """Notes on a group that it has been seen."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        group.num_cached = 0
        return group.number


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
            next(self.asked)
        return group.number


class FrozenOrder(_Order):
    """Raises for a group that runs."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        assert group.admitted_at is None and not group.live[0].table.blocks, "it runs already"
        return group.number


class OneSidedOrder(_Order):
    """Counts what was served, but is not told when a group has left."""

    total = 0

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return (self.total, group.number)

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.total += num_tokens


class _CountingService(_Order):
    """By arrival; counts the tokens that each request was served."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.tokens: dict[str, int] = {}

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return group.number

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.tokens[group.id] = self.tokens.get(group.id, 0) + num_tokens

    def left(self, group: SequenceGroup, /) -> None:
        self.tokens.pop(group.id, None)


class AssumingOrder(_CountingService):
    """Assumes that what leaves was served."""

    def left(self, group: SequenceGroup, /) -> None:
        del self.tokens[group.id]


class RememberingOrder(_CountingService):
    """Never forgets a group."""

    def left(self, group: SequenceGroup, /) -> None:
        self.tokens[group.id] = 0


QUANTA = with_another(
    _CountingService,
    "quantum_over",
    {
        # over every other time that it is asked
        "CountingQuantum": lambda self, group, now: next(self.asked) % 2 == 1,
        "RollingQuantum": lambda self, group, now: bool(self.rolled(group)),
        # answers with a number of tokens
        "WordlessQuantum": lambda self, group, now: self.tokens.get(group.id, 0),
        # raises for a group that was not served yet
        "NarrowQuantum": lambda self, group, now: self.tokens[group.id] > 4,
    },
)


class MarkingQuantum(_CountingService):
    """Notes on a group that it has been asked about."""

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        group.num_preemptions += 1
        return False


# ---------------------------------------------------------------------- victims


class _Victim(_Policy, Victim):
    pass


VICTIMS = with_another(
    _Victim,
    "choose",
    {
        "OldestVictim": lambda self, shown, now: shown[0],
        # changes the list that it is shown
        "PoppingVictim": lambda self, shown, now: shown.pop(),
        # finds none if there is only one candidate
        "ForgetfulVictim": lambda self, shown, now: shown[-2],
        "RollingVictim": lambda self, shown, now: choice(list(shown)),
        # only among those that were not preempted yet
        "SparingVictim": lambda self, shown, now: [g for g in shown if not g.num_preemptions][-1],
    },
)


class ActingVictim(_Victim):
    """Frees the blocks itself."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        self.kv_cache.release_group(candidates[-1])
        return candidates[-1]


class LateVictim(_Victim):
    """Chooses among those that it was shown the last time."""

    shown: Sequence[SequenceGroup] = ()

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        chosen = self.shown[0] if self.shown else candidates[-1]
        self.shown = list(candidates)
        return chosen


class CountingVictim(_Victim):
    """Counts preemptions, as the engine does."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        candidates[-1].num_preemptions += 1
        return candidates[-1]


class SortingVictim(_Victim):
    """Sorts the list that it is shown."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        candidates.sort(key=lambda group: -group.number)  # type: ignore[attr-defined]
        return candidates[0]


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
        scores = [blocks / (max(held) - min(held)) for blocks in held]
        return candidates[scores.index(max(scores))]


# ---------------------------------------------------------------------- preemptions


class _Preemption(_Policy, Preemption):
    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return RECOMPUTE


class _Swapping(_Preemption):
    may_swap = True


PREEMPTIONS = {
    **with_another(
        _Preemption,
        "mode",
        {
            # it says that it never swaps
            "SecretSwapPreemption": lambda self, group: SWAP,
            "WordlessPreemption": lambda self, group: "drop",
        },
    ),
    **with_another(
        _Swapping,
        "mode",
        {
            "AlternatingPreemption": lambda self, group: (SWAP, RECOMPUTE)[next(self.asked) % 2],
            "RollingPreemption": lambda self, group: (RECOMPUTE, SWAP)[self.rolled(group)],
        },
    ),
    **with_another(
        _Preemption,
        "tokens_to_reserve",
        {
            # more than a sequence can come to
            "ExcessivePreemption": lambda self, group: group.max_length + 8,
            # more than there is
            "HoardingPreemption": lambda self, group: 10**9,
            # less than what a group has already
            "StingyPreemption": lambda self, group: 1,
            # raises for a group that holds no blocks
            "NarrowPreemption": lambda self, group: (
                len(group.live[0].tokens) if group.live[0].table.blocks[0] >= 0 else None
            ),
        },
    ),
}


class TouchingPreemption(_Preemption):
    """Counts preemptions, as the engine does."""

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        group.num_preemptions += 1
        return RECOMPUTE


class SearchingPreemption(_Preemption):
    """Looks for ever for a length that suits a forked group."""

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        while group.num_seqs > 1:
            next(self.asked)
        return RECOMPUTE


class FirstPreemption(_Swapping):
    """Swaps the first group that it is asked about."""

    first: SequenceGroup | None = None

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        self.first = self.first or group
        return SWAP if group is self.first else RECOMPUTE


globals().update({**ORDERS, **QUANTA, **VICTIMS, **PREEMPTIONS})
