"""A scheduler as they were written before there were a Planner and a Preemptor."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.engine.contexts import SchedulerContext
from paged_core.engine.waiting_queue import WaitingQueue
from paged_core.errors import OutOfBlocks
from paged_core.interfaces.preemption import PreemptionMode
from paged_core.interfaces.scheduler import Queues, Schedule, Scheduler
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup, SequenceState, Status


class SelfMadeSettings(ComponentSettings):
    """Options of :class:`SelfMadeScheduler`."""

    name: Literal["self_made"] = "self_made"
    max_num_batched_tokens: PositiveInt = Field(
        default=2048, description="tokens computed in one step, at most"
    )
    max_num_seqs: PositiveInt = Field(default=256, description="sequences that run, at most")


class SelfMadeScheduler(Scheduler):
    """Moves blocks, sets the status and fills in the plan itself, by the names of 0.1."""

    def __init__(self, options: SelfMadeSettings, context: SchedulerContext, /) -> None:
        self._options = options
        self._kv = context.kv_cache
        self._victim = context.victim
        self._preemption = context.preemption
        self._max_model_len = context.max_model_len
        self._waiting = WaitingQueue(context.queue_order)
        self._running: list[SequenceGroup] = []
        self._swapped: list[SequenceGroup] = []
        self._now = 0.0

    @property
    def max_num_seqs(self) -> int:
        return self._options.max_num_seqs

    @property
    def length_cap(self) -> int:
        return self._max_model_len

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting) + len(self._swapped)

    def queues(self) -> Queues:
        return Queues(tuple(self._running), self._waiting.ordered(), tuple(self._swapped))

    def refuse(self, group: SequenceGroup, /) -> str | None:
        budget = self._options.max_num_batched_tokens
        if group.seats > budget:
            return (
                f"its {group.seats} sequences decode together, and a step takes {budget} tokens "
                "(scheduler.max_num_batched_tokens)"
            )
        return None

    def add(self, group: SequenceGroup, /) -> None:
        self._waiting.push(group, self._now)

    def remove(self, group: SequenceGroup, /) -> None:
        for queue in (self._waiting, self._running, self._swapped):
            if group in queue:
                queue.remove(group)

    def schedule(self, now: float, /) -> Schedule:
        self._now = now
        plan = Schedule()
        tokens_left = self._options.max_num_batched_tokens
        for group in tuple(self._running):
            is_ready = all(sequence.num_pending for sequence in group.live)
            if is_ready and group.status is Status.RUNNING:  # not preempted for one before it
                tokens_left -= self._compute(plan, group, tokens_left)
        if not (plan.preempted or plan.swapped_out):
            self._swap_in(plan)
            if not self._swapped:
                self._admit(plan, tokens_left)
        return plan

    def _compute(self, plan: Schedule, group: SequenceGroup, tokens_left: int) -> int:
        """Schedule a group and return how many tokens; none if it is preempted, or must wait."""
        behind = [sequence for sequence in group.live if sequence.num_pending > 1]
        batch = behind[:1] or group.live
        if len(batch) > tokens_left:
            return 0
        total = 0
        for sequence in batch:
            while True:
                try:
                    total += self._reserve(plan, sequence, tokens_left)
                except OutOfBlocks:
                    if not self._make_room(plan, group):
                        return 0
                else:
                    break
        return total

    def _reserve(self, plan: Schedule, sequence: SequenceState, tokens_left: int) -> int:
        """Reserve blocks for a chunk of a sequence and add it to the batch; return its tokens.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        if sequence.table.blocks:
            count = min(sequence.num_pending, tokens_left)
            self._kv.reserve(sequence, count)
        else:  # settled: not blocks of this step, whose group may yet be preempted
            hit = self._kv.lookup(sequence, sequence.num_tokens - 1, committed=True)
            num_cached = len(hit.blocks) * self._kv.block_size
            count = min(sequence.num_tokens - num_cached, tokens_left)
            self._kv.admit(sequence, count, hit, num_cached)
        plan.add(sequence, count)
        return count

    def _make_room(self, plan: Schedule, group: SequenceGroup) -> bool:
        """Preempt a victim so that ``group`` can grow; whether ``group`` still runs."""
        victim = self._victim.choose(self._running[1:] or [group], self._now)
        is_alone = len(self._running) == 1
        self._running.remove(victim)
        held = self._kv.distinct_blocks(group) + self._kv.blocks_to_grow(group)
        if is_alone and held > self._kv.num_blocks:
            self._give_up(plan, group, "it is alone and fills the whole cache")
        else:
            self._preempt(plan, victim)
        return victim is not group

    def _preempt(self, plan: Schedule, group: SequenceGroup) -> None:
        plan.withdraw(group)
        if self._preemption.mode(group) is PreemptionMode.SWAP:
            try:
                self._kv.swap_out(group)
            except OutOfBlocks:
                pass
            else:
                group.status = Status.SWAPPED
                self._swapped.append(group)
                plan.swapped_out.append(group)
                return
        self._kv.release_group(group)
        group.status = Status.WAITING
        self._waiting.push_front(group, self._now)
        plan.preempted.append(group)

    def _give_up(self, plan: Schedule, group: SequenceGroup, reason: str) -> None:
        plan.withdraw(group)
        self._kv.release_group(group)
        plan.ignored.append((group, reason))

    def _swap_in(self, plan: Schedule) -> None:
        """Resume swapped groups; they compute from the next step on."""
        while self._swapped:
            group = self._swapped[0]
            needed = self._kv.distinct_blocks(group) + self._kv.blocks_to_grow(group)
            if needed > self._kv.num_blocks:
                self._give_up(plan, group, "it fills the whole cache")
            elif self._fits(group, needed):
                self._kv.swap_in(group)
                group.status = Status.RUNNING
                plan.swapped_in.append(group)
                self._running.append(group)
            else:
                return
            del self._swapped[0]

    def _admit(self, plan: Schedule, tokens_left: int) -> None:
        self._waiting.refresh(self._now)
        while len(self._waiting) and tokens_left > 0:
            group = self._waiting.head()
            needed = self._kv.blocks_to_restore(group)
            if self._kv.blocks_to_restore(group) > self._kv.num_blocks:
                self._give_up(plan, self._waiting.pop(), "it has outgrown the cache")
                continue
            if not self._fits(group, needed) or not all(map(self._kv.can_start, group.live)):
                return
            self._running.append(self._waiting.pop())
            group.status = Status.RUNNING
            tokens_left -= self._compute(plan, group, tokens_left)
            num_cached = sum(sequence.num_scheduled for sequence in group.live)
            plan.admitted.append((group, num_cached))

    def _fits(self, group: SequenceGroup, num_blocks: int) -> bool:
        """Whether a group that takes so many blocks may run beside the running ones."""
        num_seqs = group.seats + sum(other.seats for other in self._running)
        watermark = self._kv.watermark_blocks if self._running else 0
        return num_seqs <= self.max_num_seqs and num_blocks + watermark <= self._kv.num_free
