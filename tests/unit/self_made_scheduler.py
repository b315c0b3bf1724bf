"""A scheduler as they were written before there were a Planner and a Preemptor."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.contexts import SchedulerContext
from paged_core.errors import OutOfBlocks
from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.interfaces.scheduler import Schedule
from paged_core.sequence import SequenceGroup, Status

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party" / "paged-core-example" / "src"
sys.path.append(str(EXAMPLE))
from paged_core_example.round_robin import RoundRobinScheduler, RoundRobinSettings  # noqa: E402

sys.path.remove(str(EXAMPLE))


class SelfMadeSettings(RoundRobinSettings):
    """Options of :class:`SelfMadeScheduler`."""

    name: Literal["self_made"] = "self_made"  # type: ignore[assignment]


class ByHand:
    """Moves blocks, sets the status and fills in the plan itself; it reserves nothing."""

    def __init__(self, kv_cache: KVCache, preemption: Preemption) -> None:
        self._kv, self._preemption = kv_cache, preemption

    def preempt(self, plan: Schedule, group: SequenceGroup, now: float) -> PreemptionMode:
        plan.withdraw(group)
        if self._preemption.mode(group) is PreemptionMode.SWAP:
            try:
                self._kv.swap_out(group)
            except OutOfBlocks:
                pass
            else:
                group.status = Status.SWAPPED
                plan.swapped_out.append(group)
                return PreemptionMode.SWAP
        self._kv.release_group(group)
        group.status = Status.WAITING
        plan.preempted.append(group)
        return PreemptionMode.RECOMPUTE

    def resume(self, plan: Schedule, group: SequenceGroup) -> None:
        self._kv.swap_in(group)
        group.status = Status.RUNNING
        plan.swapped_in.append(group)

    def give_up(self, plan: Schedule, group: SequenceGroup, reason: str) -> None:
        plan.withdraw(group)
        self._kv.release_group(group)
        plan.ignored.append((group, reason))

    def outgrew_cache(self, group: SequenceGroup) -> bool:
        held = self._kv.distinct_blocks(group) + self._kv.blocks_to_grow(group)
        return held > self._kv.num_blocks

    def blocks_to_admit(self, group: SequenceGroup, running: Iterable[SequenceGroup]) -> int:
        return self._kv.blocks_to_restore(group)

    def refuse(self, group: SequenceGroup, num_blocks: int) -> str | None:
        return None


class SelfMadeScheduler(RoundRobinScheduler):
    """The scheduler of the example package without the preemptor, by the names of 0.1."""

    def __init__(self, options: SelfMadeSettings, context: SchedulerContext, /) -> None:
        by_hand: Any = ByHand(context.kv_cache, context.preemption)
        super().__init__(options, replace(context, preemptor=by_hand))

    def _fits(self, group: SequenceGroup, num_blocks: int) -> bool:
        num_seqs = group.seats + sum(other.seats for other in self._running)
        watermark = self._kv.watermark_blocks if self._running else 0
        return num_seqs <= self.max_num_seqs and num_blocks + watermark <= self._kv.num_free
