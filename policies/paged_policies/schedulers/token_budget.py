"""vLLM V1's scheduler: one budget of tokens a step, spent on whoever has tokens to compute."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from paged_core.component import ComponentSettings
from paged_core.errors import OutOfBlocks
from paged_core.interfaces.preemption import PreemptionMode
from paged_core.interfaces.scheduler import Queues, Schedule, Scheduler, SchedulerParts
from paged_core.kv_cache import PrefixHit
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_core.waiting_queue import WaitingQueue
from paged_policies.schedulers.promises import Promises
from paged_policies.schedulers.quanta import Quanta
from paged_policies.schedulers.room import Room


class TokenBudgetSettings(ComponentSettings):
    """Options of :class:`TokenBudgetScheduler`."""

    name: Literal["token_budget"] = "token_budget"
    max_num_batched_tokens: PositiveInt = Field(
        default=2048, description="tokens computed in one step, at most"
    )
    max_num_seqs: PositiveInt = Field(default=256, description="sequences that run, at most")
    chunked_prefill: bool = Field(
        default=True, description="split a prompt over steps where the budget is too small for it"
    )
    long_prefill_token_threshold: NonNegativeInt = Field(
        default=0, description="tokens of one prompt in one step, at most; 0: no such limit"
    )
    reserve_full_sequence: bool = Field(
        default=True, description="admit a request only if all of its tokens fit the free blocks"
    )


class TokenBudgetScheduler(Scheduler):
    """Running requests first, in the order of their admission, then the head of the queue.

    A request that decodes takes one token of the budget, a prompt what is left of it, so prompts
    are computed in chunks beside decoding. When blocks run out a victim gives way, and nothing is
    admitted in that step. The rules are those of vLLM 0.32's V1 engine; groups of several
    sequences and swapping, which that engine lacks, are this project's own: a decoding group runs
    whole or not at all, and while anything is swapped out nothing is admitted.

    Under an order that has quanta, running requests whose quantum is over make room for the one
    that comes next, and what is swapped out comes back in its place in the order.
    """

    def __init__(self, options: TokenBudgetSettings, parts: SchedulerParts, /) -> None:
        self._options = options
        self._kv = parts.kv_cache
        self._order = parts.queue_order
        self._victim = parts.victim
        self._preemption = parts.preemption
        self._promises = Promises(parts.preemption, parts.kv_cache)
        self._quanta = Quanta(parts.queue_order, self._promises)
        self._max_model_len = parts.max_model_len
        self._running: list[SequenceGroup] = []
        self._swapped: list[SequenceGroup] = []
        self._waiting = WaitingQueue(parts.queue_order)
        self._now = 0.0

    @property
    def max_num_seqs(self) -> int:
        return self._options.max_num_seqs

    @property
    def length_cap(self) -> int:
        return self._max_model_len

    def __len__(self) -> int:
        return len(self._running) + len(self._swapped) + len(self._waiting)

    def add(self, group: SequenceGroup, /) -> None:
        self._waiting.push(group, self._now)

    def remove(self, group: SequenceGroup, /) -> None:
        if group in self._waiting:
            self._waiting.remove(group)
        elif group in self._swapped:
            self._swapped.remove(group)
        else:
            self._running.remove(group)

    def refuse(self, group: SequenceGroup, /) -> str | None:
        options, length = self._options, len(group.request.prompt)
        if length >= self._max_model_len:
            return f"the prompt has {length} tokens, but max_model_len is {self._max_model_len}"
        if group.seats > options.max_num_batched_tokens:
            return (
                f"its {group.seats} sequences decode together, and a step takes "
                f"{options.max_num_batched_tokens} tokens (scheduler.max_num_batched_tokens)"
            )
        if not options.chunked_prefill:
            budget = options.max_num_batched_tokens
            if min(length, options.long_prefill_token_threshold or length) > budget:
                return (
                    f"the prompt has {length} tokens, more than one step takes without chunked "
                    f"prefill (scheduler.max_num_batched_tokens={budget})"
                )
        return self._promises.refuse(group, self._kv.num_blocks)

    def queues(self) -> Queues:
        self._waiting.refresh(self._now)
        return Queues(tuple(self._running), self._waiting.ordered(), tuple(self._swapped))

    def schedule(self, now: float, /) -> Schedule:
        self._now = now
        plan = _Plan(self._options.max_num_batched_tokens, self._threshold())
        if self._quanta.exist:
            self._end_quanta(plan)
        num_gone = plan.num_gone
        self._schedule_running(plan)
        if plan.num_gone == num_gone:  # nothing had to give way for blocks
            if self._swapped:
                self._swap_in(plan)
            if not self._swapped or self._overtakes():
                self._admit(plan)
        return plan.schedule

    def _threshold(self) -> int:
        """The chunk limit of this step; one request alone is not limited."""
        if len(self._running) + len(self._waiting) + len(self._swapped) <= 1:
            return 0
        return self._options.long_prefill_token_threshold

    # ------------------------------------------------------------------ running requests

    def _schedule_running(self, plan: _Plan) -> None:
        running = self._running
        sequences, num_tokens = plan.schedule.sequences, plan.schedule.num_tokens
        while plan.index < len(running) and plan.budget > 0:
            group = running[plan.index]
            live = group.live
            if len(live) > 1:
                if not self._schedule_group(plan, group):
                    break
            else:
                sequence = live[0]
                start = sequence.num_scheduled
                count = len(sequence.tokens) - start
                if count > 1:
                    count = min(plan.chunk(count), self._max_model_len - 1 - start)
                if start + count >= sequence.capacity:
                    if not sequence.table.blocks:  # the others ended before it was started again
                        if not self._schedule_group(plan, group):
                            break
                        plan.index += 1
                        continue
                    if not self._reserve(plan, sequence, count):
                        break
                sequences.append(sequence)
                num_tokens.append(count)
                plan.budget -= count
            plan.index += 1

    def _schedule_group(self, plan: _Plan, group: SequenceGroup) -> bool:
        """Schedule a forked group; whether the step may go on to the next one."""
        behind = [sequence for sequence in group.live if sequence.num_pending > 1]
        if behind:  # it is being computed again, each sequence for itself
            for sequence in behind:
                before = plan.budget
                if not self._catch_up(plan, sequence):
                    return False
                if before - plan.budget < sequence.num_pending:
                    break  # the next one may share what this one has yet to compute
            return True
        if len(group.live) > plan.budget:
            return False
        while self._kv.blocks_to_grow(group) > self._kv.num_free:
            if self._preempt_for(plan, group):
                return False
        for sequence in group.live:
            self._kv.reserve(sequence, 1)
            plan.take(sequence, 1)
        return True

    def _catch_up(self, plan: _Plan, sequence: SequenceState) -> bool:
        """Compute more of one sequence of a group; false: the group gave way."""
        kv = self._kv
        while True:
            try:
                if sequence.table.blocks:
                    count = plan.chunk(sequence.num_pending)
                    if count:
                        kv.reserve(sequence, count)
                        plan.take(sequence, count)
                else:  # who computes for the others in this step may yet give way
                    self._start_again(plan, sequence, settled=True)
            except OutOfBlocks:
                if self._preempt_for(plan, sequence.group):
                    return False
            else:
                return True

    def _start_again(self, plan: _Plan, sequence: SequenceState, *, settled: bool) -> int:
        """Give a sequence of a forked group its first blocks; how many tokens were cached.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        length = len(sequence.tokens)
        hit = self._kv.lookup(sequence, length - 1, settled=settled)
        cached = len(hit.blocks) * self._kv.block_size
        count = plan.chunk(length - cached)
        if not count:
            return 0
        self._kv.admit(sequence, count, hit, cached)
        plan.take(sequence, count)
        return cached

    def _reserve(self, plan: _Plan, sequence: SequenceState, count: int) -> bool:
        """Reserve blocks, preempting while they are too few; false: the sequence gave way."""
        while True:
            try:
                self._kv.reserve(sequence, count)
            except OutOfBlocks:
                if self._preempt_for(plan, sequence.group):
                    return False
            else:
                return True

    def _preempt_for(self, plan: _Plan, group: SequenceGroup) -> bool:
        """Preempt one group so that ``group`` can grow; whether it was that group itself."""
        running = self._running
        candidates = sorted(running, key=lambda other: self._order.key(other, self._now))
        # the best one is spared while it is not alone, so that it ends in any case
        victim = self._victim.choose(candidates[1:] or candidates, self._now)
        position = running.index(victim)
        if position < plan.index:
            plan.index -= 1
        plan.withdraw(victim)
        del running[position]
        if victim is group and not running and self._is_too_large(group):
            self._kv.release_group(group)
            plan.schedule.ignored.append((group, "it is alone and fills the whole cache"))
        else:
            self._give_way(plan, victim)
        return victim is group

    def _is_too_large(self, group: SequenceGroup) -> bool:
        """Whether a group that runs alone can grow no more."""
        return self._kv.distinct_blocks(group) + self._kv.blocks_to_grow(group) > (
            self._kv.num_blocks
        )

    def _give_way(self, plan: _Plan, victim: SequenceGroup) -> None:
        if self._preemption.mode(victim) is PreemptionMode.SWAP:
            try:
                self._kv.swap_out(victim)
            except OutOfBlocks:
                pass  # no room on the host either: it will be computed again
            else:
                victim.give_way(Status.SWAPPED, self._now)
                self._swapped.append(victim)
                plan.schedule.swapped_out.append(victim)
                return
        self._kv.release_group(victim)
        victim.give_way(Status.WAITING, self._now)
        self._waiting.push_front(victim, self._now)
        plan.schedule.preempted.append(victim)

    # ------------------------------------------------------------------ quanta

    def _end_quanta(self, plan: _Plan) -> None:
        """Let running groups whose quantum is over give way to the one that comes next.

        Only if that one comes before them, could not start in this step beside them, and can once
        they have left. The last in the order leaves first, and no more leave than have to.
        """
        running, swapped, waiting, now = self._running, self._swapped, self._waiting, self._now
        if swapped:
            swapped.sort(key=lambda group: self._order.key(group, now))
        spent = self._quanta.spent(running, now) if swapped or len(waiting) else []
        if swapped or spent:
            waiting.refresh(now)
        if not spent:
            return
        first = swapped[0] if swapped and not self._overtakes() else waiting.head()
        behind = [g for g in self._quanta.behind(first, spent, now) if self._could_return(g)]
        if not behind:
            return
        room = self._room(plan)
        leaving: list[SequenceGroup] = []
        while not self._would_start(plan, first, room):
            if not behind:
                return
            group = behind.pop()
            leaving.append(group)
            tokens, blocks = self._claim(plan, group)
            blocks += self._kv.distinct_blocks(group)
            room.widen(seats=group.seats, tokens=tokens, blocks=blocks)
        for group in leaving:
            running.remove(group)
            self._give_way(plan, group)

    def _could_return(self, group: SequenceGroup) -> bool:
        """Whether a running group could start again if it gave way: it may have grown too large."""
        kv = self._kv
        held = kv.distinct_blocks(group)
        if self._preemption.mode(group) is PreemptionMode.SWAP and held <= kv.num_free_host:
            return not self._is_too_large(group)
        return kv.blocks_to_restore(group) <= kv.num_blocks and not self._outgrew_step(group)

    def _room(self, plan: _Plan) -> Room:
        """What those who run are going to leave of this step."""
        running = self._running
        seats = self._options.max_num_seqs - sum(group.seats for group in running)
        claims = [self._claim(plan, group) for group in running]
        tokens = plan.budget - sum(tokens for tokens, _ in claims)
        return Room(seats, tokens, self._kv.num_free - sum(b for _, b in claims), len(running))

    def _claim(self, plan: _Plan, group: SequenceGroup) -> tuple[int, int]:
        """Tokens and blocks that a running group is to get in this step."""
        counts = [plan.chunk(sequence.num_pending) for sequence in group.live]
        return sum(counts), self._kv.blocks_to_grow(group, max(counts))

    def _would_start(self, plan: _Plan, group: SequenceGroup, room: Room) -> bool:
        """Whether a group that waits or is swapped out could start in this step, given ``room``."""
        kv, live = self._kv, group.live
        if group.seats > room.seats or room.tokens <= 0:
            return False
        watermark = kv.watermark_blocks if room.num_running else 0
        if group.status is Status.SWAPPED:
            count = min(plan.chunk(live[0].num_pending), room.tokens) if len(live) == 1 else 1
            needed = kv.distinct_blocks(group) + kv.blocks_to_grow(group, count)
            return needed + watermark <= room.blocks and len(live) * count <= room.tokens
        if len(live) > 1:
            return kv.blocks_to_restore(group) + watermark <= room.blocks
        sequence = live[0]
        hit = kv.lookup(sequence, len(sequence.tokens) - 1)
        if self._first_chunk(plan, sequence, hit, room) is None:
            return False
        if kv.reserves_runs and room.num_running < len(self._running):  # where they lie is open
            return kv.blocks_to_start(len(sequence.tokens), group.max_length) <= room.blocks
        return kv.can_start(sequence)

    def _overtakes(self) -> bool:
        """Whether the head of the queue goes before what is swapped out; it is in order by now."""
        if not (self._quanta.exist and self._swapped and len(self._waiting)):
            return False
        key, now = self._order.key, self._now
        return bool(key(self._waiting.head(), now) < key(self._swapped[0], now))

    def _comes_next(self, plan: _Plan, head: SequenceGroup) -> bool:
        """Whether the head of the queue may start: not if it has just given way itself."""
        return head not in plan.schedule.preempted and (not self._swapped or self._overtakes())

    # ------------------------------------------------------------------ those that come in

    def _swap_in(self, plan: _Plan) -> None:
        kv = self._kv
        while self._swapped and plan.budget > 0:
            group = self._swapped[0]
            if group in plan.schedule.swapped_out or self._overtakes():
                break
            live = group.live
            count = 1
            if len(live) == 1:
                count = plan.chunk(live[0].num_pending)
            needed = kv.distinct_blocks(group) + kv.blocks_to_grow(group, count)
            if needed > kv.num_blocks:
                del self._swapped[0]
                kv.release_group(group)
                plan.schedule.ignored.append((group, "it fills the whole cache"))
                continue
            watermark = kv.watermark_blocks if self._running else 0
            if (
                needed + watermark > kv.num_free
                or group.seats > self._seats_left()
                or len(live) * count > plan.budget
            ):
                break
            del self._swapped[0]
            kv.swap_in(group)
            self._enter(group)
            plan.schedule.swapped_in.append(group)
            if not live[0].table.blocks or (
                len(live) > 1 and any(sequence.num_pending > 1 for sequence in live)
            ):
                continue  # still being computed again: from the next step on
            for sequence in live:
                kv.reserve(sequence, count)
                plan.take(sequence, count)

    def _admit(self, plan: _Plan) -> None:
        waiting = self._waiting
        seats_left = self._seats_left() if len(waiting) else 0
        if seats_left <= 0 or plan.budget <= 0:
            return  # whoever comes first: an order that changes need not be sorted out
        waiting.refresh(self._now)
        while len(waiting) and plan.budget > 0:
            group = waiting.head()
            if group.seats > seats_left:
                break
            if self._quanta.exist and not self._comes_next(plan, group):
                break
            if len(group.live) > 1:
                cached = self._restore_group(plan, group)
            else:
                cached = self._start(plan, group.live[0])
            if cached is None:
                if not self._never_fits(group):
                    break
                waiting.pop()
                plan.schedule.ignored.append((group, "it has outgrown the cache or the step"))
                continue
            waiting.pop()
            seats_left -= group.seats
            self._enter(group)
            plan.schedule.admitted.append((group, cached))

    def _start(self, plan: _Plan, sequence: SequenceState) -> int | None:
        """Give a waiting sequence its first blocks; how many tokens were cached, if it fits."""
        kv = self._kv
        hit = kv.lookup(sequence, len(sequence.tokens) - 1)
        room = Room(0, plan.budget, kv.num_free, len(self._running))
        count = self._first_chunk(plan, sequence, hit, room)
        if count is None or not kv.can_start(sequence):
            return None
        cached = len(hit.blocks) * kv.block_size
        kv.admit(sequence, count, hit, cached)
        plan.take(sequence, count)
        return cached

    def _first_chunk(
        self, plan: _Plan, sequence: SequenceState, hit: PrefixHit, room: Room
    ) -> int | None:
        """Tokens that a step computes of a waiting sequence first, if that fits into ``room``."""
        kv, options = self._kv, self._options
        length = len(sequence.tokens)
        num_hits = len(hit.blocks)
        cached = num_hits * kv.block_size
        count = length - cached
        if plan.threshold:
            count = min(count, plan.threshold)
        if count > room.tokens:
            if not options.chunked_prefill:
                if plan.threshold or not options.long_prefill_token_threshold:
                    return None
                count = options.long_prefill_token_threshold  # alone; vLLM waits for company
            count = min(count, room.tokens)
        blocks = room.blocks - hit.num_idle + num_hits
        if room.num_running:
            blocks -= kv.watermark_blocks
        if options.reserve_full_sequence and kv.blocks_for(length) > blocks:
            return None
        if kv.blocks_for(cached + count) > blocks:
            return None
        lifetime = self._promises.lifetime(sequence.group)
        if lifetime and lifetime + self._promises.outstanding(self._running) > blocks:
            return None
        return count

    def _restore_group(self, plan: _Plan, group: SequenceGroup) -> int | None:
        """Start a forked group again, each sequence as its own prompt; as :meth:`_start`.

        One after the other, so that each shares what it has in common with those before it.
        """
        kv = self._kv
        watermark = kv.watermark_blocks if self._running else 0
        if kv.blocks_to_restore(group) + watermark > kv.num_free:
            return None
        total = 0
        for sequence in group.live:
            before = plan.budget
            try:
                cached = self._start_again(plan, sequence, settled=False)
            except OutOfBlocks:
                break  # it catches up when there is room
            total += cached
            if before - plan.budget < len(sequence.tokens) - cached:
                break
        return total

    def _never_fits(self, group: SequenceGroup) -> bool:
        """Whether a group that was preempted has grown past what it can be started again with."""
        if not group.num_preemptions:
            return False
        if self._kv.blocks_to_restore(group) > self._kv.num_blocks:
            return True
        return self._outgrew_step(group) and not (self._kv.caches_prefixes and self._running)

    def _outgrew_step(self, group: SequenceGroup) -> bool:
        """Whether no step takes all the tokens of a sequence, nor part of them."""
        options, length = self._options, len(group.live[0].tokens)
        return (
            len(group.live) == 1
            and not options.chunked_prefill
            and min(length, options.long_prefill_token_threshold or length)
            > options.max_num_batched_tokens
        )

    def _enter(self, group: SequenceGroup) -> None:
        group.status = Status.RUNNING
        self._running.append(group)

    def _seats_left(self) -> int:
        """Sequences that may join those that run; below 1, none, however far below."""
        max_num_seqs = self._options.max_num_seqs
        if len(self._running) >= max_num_seqs:
            return 0  # the usual case is not to be counted in every step
        return max_num_seqs - sum(group.seats for group in self._running)


class _Plan:
    """One step while it is planned."""

    __slots__ = ("budget", "index", "schedule", "threshold")

    def __init__(self, budget: int, threshold: int) -> None:
        self.schedule = Schedule()
        self.budget = budget
        """Tokens left."""
        self.threshold = threshold
        """Tokens of one prompt at most; 0: no limit."""
        self.index = 0
        """Position in the running list."""

    @property
    def num_gone(self) -> int:
        """Groups that had to give way so far."""
        return len(self.schedule.preempted) + len(self.schedule.swapped_out)

    def chunk(self, num_tokens: int) -> int:
        """How many of ``num_tokens`` this step may take."""
        if self.threshold:
            num_tokens = min(num_tokens, self.threshold)
        return min(num_tokens, self.budget)

    def take(self, sequence: SequenceState, num_tokens: int) -> None:
        self.schedule.sequences.append(sequence)
        self.schedule.num_tokens.append(num_tokens)
        self.budget -= num_tokens

    def withdraw(self, group: SequenceGroup) -> None:
        """Take back what this step was to compute for ``group``."""
        schedule = self.schedule
        kept = [i for i, sequence in enumerate(schedule.sequences) if sequence.group is not group]
        if len(kept) < len(schedule.sequences):
            self.budget += sum(schedule.num_tokens) - sum(schedule.num_tokens[i] for i in kept)
            schedule.sequences[:] = [schedule.sequences[i] for i in kept]
            schedule.num_tokens[:] = [schedule.num_tokens[i] for i in kept]
