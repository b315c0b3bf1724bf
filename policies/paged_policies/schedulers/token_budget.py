"""vLLM V1's scheduler: one budget of tokens a step, spent on all sequences with tokens pending."""

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
from paged_policies.schedulers.quanta import Quanta, fewest_to_preempt
from paged_policies.schedulers.step_budget import StepBudget


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
    are prefilled in chunks beside decoding. When blocks run out a victim is preempted, and nothing
    is admitted in that step. The rules are those of vLLM 0.32's V1 engine; groups of several
    sequences and swapping, which that engine lacks, are this project's own: a decoding group runs
    whole or not at all, and while a group is swapped out none is admitted.

    Under an order that has quanta, running requests whose quantum is over are preempted for the one
    that comes next, and swapped groups are resumed by their place in the order.
    """

    def __init__(self, options: TokenBudgetSettings, parts: SchedulerParts, /) -> None:
        self._options = options
        self._kv = parts.kv_cache
        self._order = parts.queue_order
        self._victim = parts.victim
        self._preemptor = parts.preemptor
        self._quanta = Quanta(parts.queue_order, parts.preemptor)
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

    def queues(self) -> Queues:
        self._waiting.refresh(self._now)
        return Queues(tuple(self._running), self._waiting.ordered(), tuple(self._swapped))

    def refuse(self, group: SequenceGroup, /) -> str | None:
        options, length = self._options, len(group.request.prompt)
        if length >= self._max_model_len:
            return f"the prompt has {length} tokens, but max_model_len is {self._max_model_len}"
        if group.num_seqs > options.max_num_batched_tokens:
            return (
                f"its {group.num_seqs} sequences decode together, and a step takes "
                f"{options.max_num_batched_tokens} tokens (scheduler.max_num_batched_tokens)"
            )
        if not options.chunked_prefill:
            budget = options.max_num_batched_tokens
            if min(length, options.long_prefill_token_threshold or length) > budget:
                return (
                    f"the prompt has {length} tokens, more than one step takes without chunked "
                    f"prefill (scheduler.max_num_batched_tokens={budget})"
                )
        return self._preemptor.refuse(group, self._kv.num_blocks)

    def add(self, group: SequenceGroup, /) -> None:
        self._waiting.push(group, self._now)

    def remove(self, group: SequenceGroup, /) -> None:
        if group in self._waiting:
            self._waiting.remove(group)
        elif group in self._swapped:
            self._swapped.remove(group)
        else:
            self._running.remove(group)

    def schedule(self, now: float, /) -> Schedule:
        self._now = now
        step = _Step(self._options.max_num_batched_tokens, self._threshold())
        if self._quanta.exist:
            self._end_quanta(step)
        num_preempted = step.num_preempted
        self._schedule_running(step)
        if step.num_preempted == num_preempted:  # there were blocks for all
            if self._swapped:
                self._swap_in(step)
            if not self._swapped or self._overtakes():
                self._admit(step)
        return step.plan

    def _threshold(self) -> int:
        """The chunk limit of this step; one request alone is not limited."""
        if len(self._running) + len(self._waiting) + len(self._swapped) <= 1:
            return 0
        return self._options.long_prefill_token_threshold

    # ------------------------------------------------------------------ quanta

    def _end_quanta(self, step: _Step) -> None:
        """Preempt running groups whose quantum is over for the group that comes next.

        Only if that one comes before them, could not start in this step beside them, and can once
        they are preempted. The last in the order first, and no more than necessary.
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
        for group in fewest_to_preempt(
            behind,
            self._left_by_running(step),
            freed_by=lambda group: self._freed_by(step, group),
            suffices=lambda left: self._would_start(step, first, left),
        ):
            self._preempt(step, group)

    def _overtakes(self) -> bool:
        """Whether the head of the queue goes before the first swapped group; both are in order."""
        if not (self._quanta.exist and self._swapped and len(self._waiting)):
            return False
        key, now = self._order.key, self._now
        return bool(key(self._waiting.head(), now) < key(self._swapped[0], now))

    def _could_return(self, group: SequenceGroup) -> bool:
        """Whether a running group could start again after a preemption, or has grown too large."""
        if self._preemptor.would_swap(group):
            return not self._preemptor.outgrew_cache(group)
        return self._kv.blocks_to_restore(group) <= self._kv.num_blocks and not self._outgrew_step(
            group
        )

    def _left_by_running(self, step: _Step) -> StepBudget:
        """What running groups are going to leave of this step."""
        running = self._running
        claims = [self._claim(step, group) for group in running]
        return StepBudget(
            self._options.max_num_seqs - sum(group.num_seqs for group in running),
            step.tokens_left - sum(tokens for tokens, _ in claims),
            self._kv.num_free - sum(blocks for _, blocks in claims),
            len(running),
        )

    def _freed_by(self, step: _Step, group: SequenceGroup) -> StepBudget:
        """What the preemption of a running group adds to that."""
        tokens, blocks = self._claim(step, group)
        return StepBudget(group.num_seqs, tokens, blocks + self._kv.distinct_blocks(group), -1)

    def _claim(self, step: _Step, group: SequenceGroup) -> tuple[int, int]:
        """Tokens and blocks that a running group is to get in this step."""
        counts = [step.chunk(sequence.num_pending) for sequence in group.live]
        return sum(counts), self._kv.blocks_to_grow(group, max(counts))

    def _would_start(self, step: _Step, group: SequenceGroup, left: StepBudget) -> bool:
        """Whether a waiting or swapped group could start in this step, given what is ``left``."""
        kv, live = self._kv, group.live
        if group.num_seqs > left.num_seqs or left.num_tokens <= 0:
            return False
        watermark = kv.watermark_blocks if left.num_running else 0
        if group.status is Status.SWAPPED:
            count = min(step.chunk(live[0].num_pending), left.num_tokens) if len(live) == 1 else 1
            needed = kv.distinct_blocks(group) + kv.blocks_to_grow(group, count)
            return needed + watermark <= left.num_blocks and len(live) * count <= left.num_tokens
        if len(live) > 1:
            return kv.blocks_to_restore(group) + watermark <= left.num_blocks
        sequence = live[0]
        hit = kv.lookup(sequence, sequence.num_tokens - 1)
        if self._first_chunk(step, sequence, hit, left) is None:
            return False
        if kv.reserves_runs and left.num_running < len(self._running):  # which runs is not known
            return kv.blocks_to_start(sequence.num_tokens, group.max_length) <= left.num_blocks
        return kv.can_start(sequence)

    # ------------------------------------------------------------------ running requests

    def _schedule_running(self, step: _Step) -> None:
        """Schedule running groups in the order of their admission, while tokens are left."""
        plan, longest = step.plan, self._max_model_len - 1
        sequences, num_tokens, running = plan.sequences, plan.num_tokens, Status.RUNNING
        for group in tuple(self._running):
            if step.tokens_left <= 0:
                break
            if group.status is not running:
                continue  # preempted for one before it
            live = group.live
            if len(live) > 1:
                if not self._schedule_group(step, group):
                    break
                continue
            sequence = live[0]
            start = sequence.num_scheduled
            count = len(sequence.tokens) - start + sequence.num_unknown
            if count != 1:
                if count == 0:
                    continue  # it waits for a step under way
                count = min(step.chunk(count), longest - start)
            if start + count >= sequence.capacity:
                if not sequence.table.blocks:  # the others ended before it was started again
                    if not self._schedule_group(step, group):
                        break
                    continue
                if not self._reserve(step, sequence, count):
                    break
            sequences.append(sequence)
            num_tokens.append(count)
            step.tokens_left -= count

    def _reserve(self, step: _Step, sequence: SequenceState, count: int) -> bool:
        """Reserve blocks, preempting while they are too few; whether the sequence still runs."""
        while True:
            try:
                self._kv.reserve(sequence, count)
            except OutOfBlocks:
                if not self._preempt_for(step, sequence.group):
                    return False
            else:
                return True

    def _schedule_group(self, step: _Step, group: SequenceGroup) -> bool:
        """Schedule a forked group; whether the step may go on to the next one."""
        pending = [sequence.num_pending for sequence in group.live]
        if not all(pending):
            return True  # it waits for a step under way
        if max(pending) > 1:
            return self._catch_up(step, group)
        if len(group.live) > step.tokens_left:
            return False
        while self._kv.blocks_to_grow(group) > self._kv.num_free:
            if not self._preempt_for(step, group):
                return False
        for sequence in group.live:
            self._kv.reserve(sequence, 1)
            step.add(sequence, 1)
        return True

    def _catch_up(self, step: _Step, group: SequenceGroup) -> bool:
        """Compute more of a group that is recomputed, each sequence as a prompt of its own.

        Returns:
            Whether it still runs.
        """
        for sequence in [sequence for sequence in group.live if sequence.num_pending > 1]:
            before = step.tokens_left
            while True:
                try:
                    self._compute_more(step, sequence)
                except OutOfBlocks:
                    if not self._preempt_for(step, group):
                        return False
                else:
                    break
            if before - step.tokens_left < sequence.num_pending:
                break  # the next one may share what this one has yet to compute
        return True

    def _compute_more(self, step: _Step, sequence: SequenceState) -> None:
        """Compute a chunk of a sequence of a forked group, which may hold no blocks yet.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        if not sequence.table.blocks:  # what this step computes may yet be withdrawn: no sharing
            self._start_again(step, sequence, settled=True)
            return
        count = step.chunk(sequence.num_pending)
        if count:
            self._kv.reserve(sequence, count)
            step.add(sequence, count)

    def _start_again(self, step: _Step, sequence: SequenceState, *, settled: bool) -> int:
        """Give a sequence of a forked group its first blocks; how many tokens were cached.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        length = sequence.num_tokens
        hit = self._kv.lookup(sequence, length - 1, settled=settled)
        cached = len(hit.blocks) * self._kv.block_size
        count = step.chunk(length - cached)
        if not count:
            return 0
        self._kv.admit(sequence, count, hit, cached)
        step.add(sequence, count)
        return cached

    def _preempt_for(self, step: _Step, group: SequenceGroup) -> bool:
        """Preempt a victim so that ``group`` can grow; whether ``group`` still runs."""
        candidates = sorted(self._running, key=lambda other: self._order.key(other, self._now))
        # the best one is no candidate while it is not alone, so that it ends in any case
        victim = self._victim.choose(candidates[1:] or candidates, self._now)
        if victim is group and len(candidates) == 1 and self._preemptor.outgrew_cache(group):
            self._running.remove(group)
            self._preemptor.give_up(step.plan, group, "it is alone and fills the whole cache")
        else:
            self._preempt(step, victim)
        return victim is not group

    def _preempt(self, step: _Step, group: SequenceGroup) -> None:
        self._running.remove(group)
        if self._preemptor.preempt(step.plan, group, self._now) is PreemptionMode.SWAP:
            self._swapped.append(group)
        else:
            self._waiting.push_front(group, self._now)
        step.recount()

    # ------------------------------------------------------------------ swapped requests

    def _swap_in(self, step: _Step) -> None:
        kv = self._kv
        while self._swapped and step.tokens_left > 0:
            group = self._swapped[0]
            if group in step.plan.swapped_out or self._overtakes():
                break
            live = group.live
            count = step.chunk(live[0].num_pending) if len(live) == 1 else 1
            needed = kv.distinct_blocks(group) + kv.blocks_to_grow(group, count)
            if needed > kv.num_blocks:
                del self._swapped[0]
                self._preemptor.give_up(step.plan, group, "it fills the whole cache")
                continue
            watermark = kv.watermark_blocks if self._running else 0
            if (
                needed + watermark > kv.num_free
                or group.num_seqs > self._num_seqs_left()
                or len(live) * count > step.tokens_left
            ):
                break
            del self._swapped[0]
            self._preemptor.resume(step.plan, group)
            self._running.append(group)
            pending = [sequence.num_pending for sequence in live]
            if not all(pending):
                continue  # it waits for a step under way
            if not live[0].table.blocks or (len(live) > 1 and max(pending) > 1):
                continue  # it is still being recomputed: from the next step on
            for sequence in live:
                kv.reserve(sequence, count)
                step.add(sequence, count)

    # ------------------------------------------------------------------ waiting requests

    def _admit(self, step: _Step) -> None:
        waiting = self._waiting
        seqs_left = self._num_seqs_left() if len(waiting) else 0
        if seqs_left <= 0 or step.tokens_left <= 0:
            return  # whichever is the head: an order that changes need not be sorted
        waiting.refresh(self._now)
        while len(waiting) and step.tokens_left > 0:
            group = waiting.head()
            if group.num_seqs > seqs_left:
                break
            if self._quanta.exist and not self._comes_next(step, group):
                break
            if len(group.live) > 1:
                cached = self._restore_group(step, group)
            else:
                cached = self._start(step, group.live[0])
            if cached is None:
                if not self._never_fits(group):
                    break
                waiting.pop()
                self._preemptor.give_up(step.plan, group, "it has outgrown the cache or the step")
                continue
            waiting.pop()
            seqs_left -= group.num_seqs
            self._running.append(group)
            step.plan.admitted.append((group, cached))

    def _num_seqs_left(self) -> int:
        """Sequences that may run beside those that do; below 1, none, however far below."""
        max_num_seqs = self._options.max_num_seqs
        if len(self._running) >= max_num_seqs:
            return 0  # the usual case is not to be counted in every step
        return max_num_seqs - sum(group.num_seqs for group in self._running)

    def _comes_next(self, step: _Step, head: SequenceGroup) -> bool:
        """Whether the head of the queue may start: not if it was preempted in this step."""
        return head not in step.plan.preempted and (not self._swapped or self._overtakes())

    def _start(self, step: _Step, sequence: SequenceState) -> int | None:
        """Give a waiting sequence its first blocks; how many tokens were cached, if it fits."""
        kv = self._kv
        hit = kv.lookup(sequence, sequence.num_tokens - 1)
        left = StepBudget(0, step.tokens_left, kv.num_free, len(self._running))
        count = self._first_chunk(step, sequence, hit, left)
        if count is None or not kv.can_start(sequence):
            return None
        cached = len(hit.blocks) * kv.block_size
        kv.admit(sequence, count, hit, cached)
        step.add(sequence, count)
        return cached

    def _first_chunk(
        self, step: _Step, sequence: SequenceState, hit: PrefixHit, left: StepBudget
    ) -> int | None:
        """Tokens of a waiting sequence's first chunk, if ``left`` has tokens and blocks for it."""
        kv, length = self._kv, sequence.num_tokens
        num_hits = len(hit.blocks)
        cached = num_hits * kv.block_size
        count = self._first_count(step, length - cached, left.num_tokens)
        if count is None:
            return None
        blocks = left.num_blocks - hit.num_idle + num_hits
        if left.num_running:
            blocks -= kv.watermark_blocks
        if self._options.reserve_full_sequence and kv.blocks_for(length) > blocks:
            return None
        if kv.blocks_for(cached + count) > blocks:
            return None
        lifetime = self._preemptor.lifetime(sequence.group)
        if lifetime and lifetime + self._preemptor.outstanding(self._running) > blocks:
            return None
        return count

    def _first_count(self, step: _Step, num_pending: int, tokens_left: int) -> int | None:
        """The same, by tokens alone: without chunked prefill it is all of them or none."""
        options = self._options
        count = min(num_pending, step.threshold or num_pending)
        if count <= tokens_left:
            return count
        if not options.chunked_prefill:
            if step.threshold or not options.long_prefill_token_threshold:
                return None
            count = options.long_prefill_token_threshold  # alone; vLLM waits for another request
        return min(count, tokens_left)

    def _restore_group(self, step: _Step, group: SequenceGroup) -> int | None:
        """Start a forked group again, each sequence as its own prompt; as :meth:`_start`.

        One after the other, so that each shares what it has in common with those before it.
        """
        kv = self._kv
        watermark = kv.watermark_blocks if self._running else 0
        if kv.blocks_to_restore(group) + watermark > kv.num_free:
            return None
        total = 0
        for sequence in group.live:
            before = step.tokens_left
            try:
                cached = self._start_again(step, sequence, settled=False)
            except OutOfBlocks:
                break  # it catches up when blocks are free
            total += cached
            if before - step.tokens_left < sequence.num_tokens - cached:
                break
        return total

    def _never_fits(self, group: SequenceGroup) -> bool:
        """Whether a preempted group has outgrown what it can be started again with."""
        if not group.num_preemptions:
            return False
        if self._kv.blocks_to_restore(group) > self._kv.num_blocks:
            return True
        return self._outgrew_step(group) and not (self._kv.caches_prefixes and self._running)

    def _outgrew_step(self, group: SequenceGroup) -> bool:
        """Whether no step takes all the tokens of a sequence, nor part of them."""
        options, length = self._options, group.live[0].num_tokens
        return (
            len(group.live) == 1
            and not options.chunked_prefill
            and min(length, options.long_prefill_token_threshold or length)
            > options.max_num_batched_tokens
        )


class _Step:
    """One step while it is planned."""

    __slots__ = ("_budget", "plan", "threshold", "tokens_left")

    def __init__(self, budget: int, threshold: int) -> None:
        self._budget = budget
        self.plan = Schedule()
        self.tokens_left = budget
        self.threshold = threshold
        """Tokens of one prompt at most; 0: no limit."""

    @property
    def num_preempted(self) -> int:
        """Groups preempted so far."""
        return len(self.plan.preempted) + len(self.plan.swapped_out)

    def chunk(self, num_tokens: int) -> int:
        """How many of ``num_tokens`` this step may take."""
        if self.threshold:
            num_tokens = min(num_tokens, self.threshold)
        return min(num_tokens, self.tokens_left)

    def add(self, sequence: SequenceState, num_tokens: int) -> None:
        """Add a sequence to the batch."""
        self.plan.add(sequence, num_tokens)
        self.tokens_left -= num_tokens

    def recount(self) -> None:
        """A group was preempted: the tokens that were planned of it are left again."""
        self.tokens_left = self._budget - sum(self.plan.num_tokens)
