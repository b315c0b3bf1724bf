"""A scheduler that serves running requests in turns."""

from __future__ import annotations

from typing import Literal

from paged_core.engine.contexts import SchedulerContext
from paged_core.engine.waiting_queue import WaitingQueue
from paged_core.errors import OutOfBlocks
from paged_core.interfaces.preemption import PreemptionMode
from paged_core.interfaces.scheduler import Queues, Schedule, Scheduler
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup, SequenceState, Status
from pydantic import Field, PositiveInt


class RoundRobinSettings(ComponentSettings):
    """Options of :class:`RoundRobinScheduler`."""

    name: Literal["round_robin"] = "round_robin"
    quantum: PositiveInt = Field(
        default=128, description="tokens of one sequence in one turn, at most"
    )
    max_num_batched_tokens: PositiveInt = Field(
        default=2048, description="tokens computed in one step, at most"
    )
    max_num_seqs: PositiveInt = Field(default=256, description="sequences that run, at most")


class RoundRobinScheduler(Scheduler):
    """Round robin under a budget of tokens: between two turns of a request, all others have one.

    A turn decodes one token of every sequence, or prefills ``quantum`` tokens of a prompt. A step
    admits what fits beside all pending tokens, unless requests are swapped out, and then serves
    running requests from the front until its budget is spent; those it has served go to the end.
    When blocks run out a victim is preempted.

    No running request starves. Whether a waiting one can is up to the ``queue_order``.
    """

    def __init__(self, options: RoundRobinSettings, context: SchedulerContext, /) -> None:
        self._options = options
        self._kv = context.kv_cache
        self._order = context.queue_order
        self._victim = context.victim
        self._preemptor = context.preemptor
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
        if group.num_seqs > budget:
            return (
                f"its {group.num_seqs} sequences decode together, and a step takes {budget} tokens "
                "(scheduler.max_num_batched_tokens)"
            )
        return self._preemptor.refuse(group, self._kv.num_blocks)

    def add(self, group: SequenceGroup, /) -> None:
        self._waiting.push(group, self._now)

    def remove(self, group: SequenceGroup, /) -> None:
        for queue in (self._waiting, self._running, self._swapped):
            if group in queue:
                queue.remove(group)

    def schedule(self, now: float, /) -> Schedule:
        self._now = now
        plan = Schedule()
        left, running = self._options.max_num_batched_tokens, tuple(self._running)
        if not self._swapped:
            left = self._admit(plan, left)
        for group in running:
            if group.status is Status.RUNNING and not group.awaits_step:  # nor preempted by now
                left -= self._take_turn(plan, group, left)
        if not (plan.preempted or plan.swapped_out):
            self._swap_in(plan)
        served = {sequence.group for sequence in plan.sequences}
        self._running.sort(key=served.__contains__)
        return plan

    def _take_turn(self, plan: Schedule, group: SequenceGroup, left: int) -> int:
        """Schedule a group and return how many tokens; none if it is preempted, or must wait."""
        behind = [sequence for sequence in group.live if sequence.num_pending > 1]
        batch = behind[:1] or group.live  # recomputed one by one, each sharing what is there
        if len(batch) > left:
            return 0
        total = 0
        for sequence in batch:
            while True:
                try:
                    total += self._reserve(plan, sequence, min(left, self._options.quantum))
                except OutOfBlocks:
                    if not self._make_room(plan, group):
                        return 0
                else:
                    break
        return total

    def _reserve(self, plan: Schedule, sequence: SequenceState, limit: int) -> int:
        """Reserve blocks for a chunk of a sequence and add it to the batch; return its tokens.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        if sequence.table.blocks:
            count = min(sequence.num_pending, limit)
            self._kv.reserve(sequence, count)
        else:  # settled: not blocks of this step, whose group may yet be preempted
            hit = self._kv.lookup(sequence, sequence.num_tokens - 1, committed=True)
            num_cached = len(hit.blocks) * self._kv.block_size
            count = min(sequence.num_tokens - num_cached, limit)
            self._kv.admit(sequence, count, hit, num_cached)
        plan.add(sequence, count)
        return count

    def _make_room(self, plan: Schedule, group: SequenceGroup) -> bool:
        """Preempt a victim so that ``group`` can grow; whether ``group`` still runs.

        The first in the queue order is no candidate while it is not alone, so that it ends. Nor is
        what waits for a step in flight: if there is nothing else, ``group`` waits, too.
        """
        ranked = sorted(self._running, key=lambda g: (self._order.key(g, self._now), g.number))
        candidates = [other for other in ranked[1:] or ranked if not other.awaits_step]
        if not candidates:
            return False
        victim = self._victim.choose(candidates, self._now)
        self._running.remove(victim)
        if len(ranked) == 1 and self._preemptor.outgrew_cache(group):
            self._preemptor.give_up(plan, group, "it is alone and fills the whole cache")
        elif self._preemptor.preempt(plan, victim, self._now) is PreemptionMode.SWAP:
            self._swapped.append(victim)
        else:
            self._waiting.push_front(victim, self._now)
        return victim is not group

    def _swap_in(self, plan: Schedule) -> None:
        """Resume swapped groups; they have their next turn after all others."""
        while self._swapped:
            group = self._swapped[0]
            needed = self._kv.distinct_blocks(group) + self._kv.blocks_to_grow(group)
            if needed > self._kv.num_blocks:
                self._preemptor.give_up(plan, group, "it fills the whole cache")
            elif self._fits(group, needed):
                self._preemptor.resume(plan, group)
                self._running.append(group)
            else:
                return
            del self._swapped[0]

    def _admit(self, plan: Schedule, left: int) -> int:
        """Admit requests that fit beside all pending tokens; return the tokens that are left."""
        self._waiting.refresh(self._now)
        while len(self._waiting) and left > 0:
            group = self._waiting.head()
            own = self._kv.blocks_to_restore(group)
            if own > self._kv.num_blocks:
                self._preemptor.give_up(plan, self._waiting.pop(), "it has outgrown the cache")
                continue
            in_flight = sum(
                self._kv.blocks_to_grow(other, max(s.num_pending for s in other.live))
                for other in self._running
            )
            reserved = self._preemptor.blocks_to_admit(group, self._running)
            if not self._fits(group, max(own + in_flight, reserved)):
                break
            if not all(map(self._kv.can_start, group.live)):
                break
            self._running.append(self._waiting.pop())
            left -= self._take_turn(plan, group, left)
            num_cached = sum(sequence.num_scheduled for sequence in group.live)
            plan.admitted.append((group, num_cached))
        return left

    def _fits(self, group: SequenceGroup, num_blocks: int) -> bool:
        """Return whether a group of so many blocks may run beside the running ones."""
        num_seqs = group.num_seqs + sum(other.num_seqs for other in self._running)
        watermark = self._kv.watermark_blocks if self._running else 0
        return num_seqs <= self.max_num_seqs and num_blocks + watermark <= self._kv.num_free
