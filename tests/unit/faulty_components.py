"""Components that are wrong on purpose: the conformance class of the slot must catch each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import choice, randrange
from typing import Any, Literal

from paged_core.block_key import BlockKey
from paged_core.component import ComponentSettings
from paged_core.ids import BlockId
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.interfaces.victim import Victim
from paged_core.sequence import SequenceGroup
from paged_policies.allocators.hash_cached import HashCachedAllocator, HashCachedSettings
from paged_policies.allocators.uncached import UncachedAllocator


class FaultySettings(ComponentSettings):
    """Options of a component that is wrong."""

    name: Literal["faulty"] = "faulty"


class FaultyHashCachedSettings(HashCachedSettings):
    """Those of ``hash_cached``."""

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]


# ---------------------------------------------------------------------- allocators


class LeakyAllocator(UncachedAllocator):
    """Frees only the first two blocks when more are freed at once."""

    def free(self, blocks: Iterable[BlockId], /) -> None:
        given = list(blocks)
        super().free(given[:2] if len(given) > 2 else given)


class DoublingAllocator(UncachedAllocator):
    """Takes a block back as soon as one of its users leaves."""

    def free(self, blocks: Iterable[BlockId], /) -> None:
        for block in blocks:
            shared = self._ref_counts[block] > 1
            super().free([block])
            if shared:
                self._free.append(block)


class HalfwayAllocator(UncachedAllocator):
    """Takes what there is before it finds that it is not enough."""

    def allocate(self, count: int, /) -> list[BlockId]:
        taken: list[BlockId] = []
        while len(taken) < count:
            taken += super().allocate(1)
        return taken


class StaleAllocator(HashCachedAllocator):
    """Goes on finding a block that holds something else by now."""

    def _forget(self, block: BlockId) -> None:
        self._keys[block] = None


class TrustingAllocator(HashCachedAllocator):
    """Looks at the hash and not at the tokens."""

    def publish(self, block: BlockId, key: BlockKey, /) -> BlockId:
        return super().publish(block, BlockKey(None, (hash(key),)))

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        return super().look_up([BlockKey(None, (hash(key),)) for key in keys])


class UnretractingAllocator(HashCachedAllocator):
    """Finds what was never computed."""

    def retract(self, blocks: Iterable[BlockId], /) -> None:
        pass


class NewestDuplicateAllocator(HashCachedAllocator):
    """Of equal blocks it finds the last published."""

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        found: list[BlockId] = []
        for key in keys:
            if key not in self._by_key:
                break
            found.append(next(reversed(self._by_key[key])))
        return found


class ReferencingAllocator(HashCachedAllocator):
    """Takes what it finds."""

    def look_up(self, keys: Sequence[BlockKey], /) -> list[BlockId]:
        found = super().look_up(keys)
        self.share(found)
        return found


# ---------------------------------------------------------------------- orders, victims, preemption


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


# ---------------------------------------------------------------------- observers


class _Observer(Observer):
    def __init__(self, options: Any, parts: Any, /) -> None:
        self.steps = 0


class RaisingObserver(_Observer):
    """Divides by what may be nothing."""

    def on_step(self, step: StepRecord, /) -> None:
        self.steps += 1 // len(step.scheduled)


class MeddlingObserver(_Observer):
    """Ends requests early."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        group.max_length = min(group.max_length, len(group.request.prompt) + 1)


class ClosingObserver(_Observer):
    """Cannot be closed before its first step."""

    def on_step(self, step: StepRecord, /) -> None:
        self.steps += 1

    def close(self) -> None:
        raise OSError("no file") if not self.steps else ValueError("no file either")
