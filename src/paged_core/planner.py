"""The planner of a scheduler: carries out its decisions, and enters each into the step's plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paged_core.errors import OutOfBlocks, PluginError
from paged_core.interfaces.schedule import Schedule
from paged_core.interfaces.scheduler import SchedulerParts
from paged_core.kv_cache import PrefixHit
from paged_core.quanta import Quanta
from paged_core.sequence import SequenceGroup, SequenceState, Status


@dataclass(frozen=True, slots=True)
class Room:
    """What a step has left for further groups; below 0 where running ones take too much."""

    num_seqs: int
    num_tokens: int
    num_blocks: int
    num_running: int
    """Groups that run, and go on running."""

    def __add__(self, freed: Room) -> Room:
        return Room(
            self.num_seqs + freed.num_seqs,
            self.num_tokens + freed.num_tokens,
            self.num_blocks + freed.num_blocks,
            self.num_running + freed.num_running,
        )


class Planner:
    """Plans the steps of a scheduler, which says only who is next and how much.

    A step is :meth:`begin`, then :meth:`grow` for running groups, :meth:`resume` and :meth:`admit`
    for one group after the other, and :attr:`plan`. The planner reserves blocks, keeps within the
    tokens and sequences of a step, treats the sequences of a group as one, preempts when blocks
    are short, and gives up what can never run again.

    It owns no queue. It appends to ``running`` what it admits and resumes, and takes out what it
    preempts and gives up; a preempted group is handed to ``requeue`` at once, for whichever queue
    its status names: ``WAITING``, or ``SWAPPED``.

    The rules by which a group starts and grows are those of vLLM's V1 engine; a scheduler with
    others overrides the methods under *rules*.

    Args:
        parts: what the factory of the scheduler got.
        running: the scheduler's running groups, in the order in which they were admitted.
        requeue: puts a preempted group into a queue, ahead of its equals.
        num_tokens: computed in one step, at most; ``None``: any number.
        num_seqs: sequences that run, at most.
        chunk: tokens of one sequence in one step, at most; 0: no such limit.
        whole_prompts: start a prompt only in a step that takes all of it, or a ``chunk``.
        reserve_full_sequence: start a prompt only if blocks are free for all of it.
    """

    stops_at_preempted = True
    """Whether :meth:`grow` ends at a group that is preempted itself, for want of a better victim."""
    spare_blocks = 0
    """Blocks that must be free for each sequence that grows, whether it takes one or not."""

    def __init__(
        self,
        parts: SchedulerParts,
        running: list[SequenceGroup],
        requeue: Callable[[SequenceGroup], None],
        *,
        num_tokens: int | None = None,
        num_seqs: int,
        chunk: int = 0,
        whole_prompts: bool = False,
        reserve_full_sequence: bool = True,
    ) -> None:
        self.kv_cache = parts.kv_cache
        self.preemptor = parts.preemptor
        self.quanta = Quanta(parts.queue_order, parts.preemptor)
        self.max_model_len = parts.max_model_len
        self.num_tokens = sys.maxsize if num_tokens is None else num_tokens
        self.num_seqs = num_seqs
        self.running = running
        self.now = 0.0
        """Seconds on the engine's clock."""
        self.chunk = chunk
        """Tokens of one sequence at most, in this step; the scheduler may change it."""
        self._order = parts.queue_order
        self._victim = parts.victim
        self._requeue = requeue
        self._chunk = chunk
        self._whole_prompts = whole_prompts
        self._reserve_full_sequence = reserve_full_sequence
        self.begin(0.0)

    # ------------------------------------------------------------------ one step

    def begin(self, now: float) -> None:
        """Start the plan of a step at ``now``."""
        self.now, self.chunk = now, self._chunk
        self.plan = Schedule()
        """The step so far."""
        self.tokens_left = self.num_tokens
        self.is_short = False
        """Whether a group was preempted in this step since blocks were short."""
        self._seqs_left: int | None = None
        self._yielded: set[SequenceGroup] = set()
        self._shares = False

    @property
    def seqs_left(self) -> int:
        """Sequences that may run beside those that do."""
        if self._seqs_left is None:
            if len(self.running) >= self.num_seqs:  # the usual case is not to be counted
                self._seqs_left = 0
            else:
                self._seqs_left = self.num_seqs - sum(group.num_seqs for group in self.running)
        return self._seqs_left

    @property
    def is_full(self) -> bool:
        """Whether nothing more can start: no tokens or sequences are left, or blocks were short."""
        return self.is_short or self.tokens_left <= 0 or self.seqs_left <= 0

    def grow(self, groups: Iterable[SequenceGroup]) -> None:
        """Compute more of running groups, in this order, while tokens are left.

        A sequence that decodes takes a token, a prompt as many as are left. When blocks are short,
        victims are preempted, in the end the group itself. Passed by are groups that no longer run,
        that are in the batch already, or that wait for a step under way.
        """
        plan, running = self.plan, Status.RUNNING
        sequences, num_tokens = plan.sequences, plan.num_tokens
        if sequences:
            planned = {sequence.group for sequence in sequences}
            groups = [group for group in groups if group not in planned]
        tokens_left, spare = self.tokens_left, self.spare_blocks
        num_free = self.kv_cache.num_free if spare else 0
        for group in tuple(groups):
            if tokens_left <= 0:
                break
            if group.status is not running:
                continue
            live = group.live
            if len(live) == 1 and num_free >= spare:
                sequence = live[0]
                start = sequence.num_scheduled
                count = len(sequence.tokens) - start + sequence.num_unknown
                if count != 1:
                    if count == 0:
                        continue
                    count = min(count, self.chunk or count, tokens_left)
                if start + count < sequence.capacity:
                    is_reserved = True
                else:
                    is_reserved = self._reserve(sequence, count)
                    num_free = self.kv_cache.num_free if spare else 0
                if is_reserved:
                    sequences.append(sequence)
                    num_tokens.append(count)
                    tokens_left -= count
                    continue
            self.tokens_left = tokens_left
            goes_on = self._grow_group(group)
            tokens_left = self.tokens_left
            if not goes_on:
                break
            num_free = self.kv_cache.num_free if spare else 0
        self.tokens_left = tokens_left

    def resume(self, group: SequenceGroup) -> bool:
        """Swap a group in, and compute more of it, if it may start in this step.

        Returns:
            Whether it leaves the queue: it runs, or it has outgrown the cache and is given up.
        """
        if self.is_short or group in self._yielded or self.tokens_left <= 0:
            return False
        kv_cache, live = self.kv_cache, group.live
        count = self._count_to_resume(group, self.tokens_left)
        needed = self.blocks_to_resume(group, count)
        if needed > self.most_blocks:
            self.give_up(group, f"it needs {needed} of {kv_cache.num_blocks} blocks")
            return True
        if not self.would_start(group, self.room()):
            return False
        self.preemptor.resume(self.plan, group)
        self._joins(group)
        pending = [sequence.num_pending for sequence in live]
        is_behind = not live[0].table.blocks or (len(live) > 1 and max(pending) > 1)
        if all(pending) and not is_behind:  # else it waits for a step under way, or for the next
            for sequence in live:
                kv_cache.reserve(sequence, count)
                self.add(sequence, count)
        return True

    def admit(self, group: SequenceGroup) -> bool:
        """Compute the first tokens of a waiting group, if it may start in this step.

        Returns:
            Whether it leaves the queue: it runs, or it was preempted, has outgrown the cache or
            the step since, and is given up.
        """
        if self.is_full or group in self._yielded or group.num_seqs > self.seqs_left:
            return False
        if len(group.live) > 1:
            cached = self._restore(group)
        else:
            cached = self._start(group.live[0])
        if cached is None:
            if not self._never_fits(group):
                return False
            self.give_up(group, "it has outgrown the cache or the step")
            return True
        self._joins(group)
        self.plan.admitted.append((group, cached))
        return True

    # ------------------------------------------------------------------ preempting

    def preempt(self, group: SequenceGroup) -> None:
        """Preempt a running group, by its mode; what was planned of it is withdrawn.

        Raises:
            PluginError: it is in the batch, and a group that was admitted may rely on it.
        """
        if self._shares and any(each.group is group for each in self.plan.sequences):
            raise PluginError(
                f"{group} was preempted after groups were admitted that may share what it was to "
                "compute in this step; preempt before admitting"
            )
        self.running.remove(group)
        self.preemptor.preempt(self.plan, group, self.now)
        self.tokens_left = self.num_tokens - sum(self.plan.num_tokens)
        self._seqs_left = None
        self._requeue(group)

    def preempt_for(self, group: SequenceGroup, num_tokens: int = 1) -> bool:
        """Preempt victims until each sequence of a running group can grow by ``num_tokens``.

        Returns:
            Whether it can; if not, it was preempted or given up itself, or waits for the next step
            since groups were admitted that rely on the batch as it is.
        """
        while self.blocks_to_grow(group, num_tokens) > self.kv_cache.num_free:
            if self._shares or not self.make_way(group):
                return False
        return True

    def give_up(self, group: SequenceGroup, reason: str) -> None:
        """End a group that can never run (again); the user is told why."""
        if group in self.running:
            self.running.remove(group)
            self._seqs_left = None
        self.preemptor.give_up(self.plan, group, reason)

    def spent(self) -> list[SequenceGroup]:
        """Return the running groups whose quantum is over; none, if the order has no quanta.

        To be asked in every step in which others wait.
        """
        return self.quanta.spent(self.running, self.now)

    def end_quanta(self, spent: Iterable[SequenceGroup], first: SequenceGroup) -> None:
        """Preempt groups whose quantum is over for the waiting or swapped group that comes next.

        Only if that one comes before them, could not start in this step beside them, and can once
        they are preempted. The last in the order first, and no more than necessary.
        """
        behind = [g for g in self.quanta.behind(first, spent, self.now) if self._could_return(g)]
        if not behind:
            return
        left = self.room()
        for group in self.running:
            tokens, blocks = self.claim(group)
            left += Room(0, -tokens, -blocks, 0)
        chosen: list[SequenceGroup] = []
        while not self.would_start(first, left):
            if not behind:
                return
            group = behind.pop()
            tokens, blocks = self.claim(group)
            blocks += self.kv_cache.distinct_blocks(group)
            left += Room(group.num_seqs, tokens, blocks, -1)
            chosen.append(group)
        for group in chosen:
            self.preempt(group)
        self._yielded.update(chosen)

    def refuse(self, group: SequenceGroup) -> str | None:
        """Say why a group could never run even alone, or return ``None``."""
        length = len(group.request.prompt)
        if length >= self.max_model_len:
            return f"the prompt has {length} tokens, but max_model_len is {self.max_model_len}"
        if reason := self.refuse_width(group, self.num_tokens):
            return reason
        if self._whole_prompts and min(length, self._chunk or length) > self.num_tokens:
            return (
                f"the prompt has {length} tokens, more than one step takes without chunked "
                f"prefill (scheduler.max_num_batched_tokens={self.num_tokens})"
            )
        return self.preemptor.refuse(group, self.most_blocks)

    def refuse_width(self, group: SequenceGroup, num_tokens: int) -> str | None:
        """Say that a group has more sequences than a step takes tokens, or return ``None``."""
        if group.num_seqs <= num_tokens:
            return None
        return (
            f"its {group.num_seqs} sequences decode together, and a step takes {num_tokens} "
            "tokens (scheduler.max_num_batched_tokens)"
        )

    # ------------------------------------------------------------------ rules

    @property
    def most_blocks(self) -> int:
        """Blocks that one group can have."""
        return self.kv_cache.num_blocks

    def room(self) -> Room:
        """What the step has left now."""
        num_free, num_running = self.kv_cache.num_free, len(self.running)
        return Room(self.seqs_left, self.tokens_left, num_free, num_running)

    def claim(self, group: SequenceGroup) -> tuple[int, int]:
        """Tokens and blocks that a running group is to get in this step."""
        counts = [self.take(sequence.num_pending) for sequence in group.live]
        return sum(counts), self.kv_cache.blocks_to_grow(group, max(counts))

    def blocks_to_grow(self, group: SequenceGroup, num_tokens: int) -> int:
        """Blocks that must be free for each sequence of a running group to grow."""
        return self.kv_cache.blocks_to_grow(group, num_tokens)

    def blocks_to_resume(self, group: SequenceGroup, num_tokens: int) -> int:
        """Blocks that must be free, watermark apart, to swap a group in and have it grow."""
        held = self.kv_cache.distinct_blocks(group)
        return held + self.kv_cache.blocks_to_grow(group, num_tokens)

    def outgrew_step(self, group: SequenceGroup) -> bool:
        """Whether no step takes all the tokens of a waiting group, nor part of them."""
        length = group.longest
        return (
            self._whole_prompts
            and len(group.live) == 1
            and min(length, self._chunk or length) > self.num_tokens
        )

    def would_start(self, group: SequenceGroup, left: Room) -> bool:
        """Whether a waiting or swapped group could start in this step, given what is ``left``."""
        if group.num_seqs > left.num_seqs:
            return False
        if group.status is not Status.SWAPPED:
            return self.would_admit(group, left)
        count = self._count_to_resume(group, left.num_tokens)
        needed = self.blocks_to_resume(group, count) + self.watermark(left)
        return needed <= left.num_blocks and len(group.live) * max(1, count) <= left.num_tokens

    def would_admit(self, group: SequenceGroup, left: Room) -> bool:
        """The same for a waiting group, if there are sequences left for it."""
        kv_cache, live = self.kv_cache, group.live
        if left.num_tokens <= 0:
            return False
        if len(live) > 1:
            return kv_cache.blocks_to_restore(group) + self.watermark(left) <= left.num_blocks
        sequence = live[0]
        hit = kv_cache.lookup(sequence, sequence.num_tokens - 1)
        return self._first_chunk(sequence, hit, left) is not None and self.has_runs(group, left)

    def watermark(self, left: Room) -> int:
        """Blocks that have to stay free when a group starts."""
        return self.kv_cache.watermark_blocks if left.num_running else 0

    def make_way(self, group: SequenceGroup) -> bool:
        """Preempt one victim so that ``group`` can grow; whether ``group`` still runs.

        The first running group in the order is no candidate while it is not alone, so that it ends
        in any case. If it is alone and fills the cache, it is given up.
        """
        candidates = sorted(self.running, key=lambda other: self._order.key(other, self.now))
        victim = self._victim.choose(candidates[1:] or candidates, self.now)
        if victim is group and len(candidates) == 1 and self.preemptor.outgrew_cache(group):
            self.give_up(group, "it is alone and fills the whole cache")
        else:
            self.preempt(victim)
            self.is_short = True
        return victim is not group

    # ------------------------------------------------------------------ for rules

    def take(self, num_tokens: int) -> int:
        """How many of ``num_tokens`` of one sequence this step may compute."""
        return min(num_tokens, self.chunk or num_tokens, self.tokens_left)

    def add(self, sequence: SequenceState, num_tokens: int) -> None:
        """Add a sequence to the batch; its blocks are reserved."""
        self.plan.add(sequence, num_tokens)
        self.tokens_left -= num_tokens

    def begin_sequence(
        self, sequence: SequenceState, count: int, hit: PrefixHit, num_skipped: int
    ) -> None:
        """Give a sequence its first blocks, and compute ``count`` tokens after those skipped.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        self.kv_cache.admit(sequence, count, hit, num_skipped)
        self._shares |= len(hit.blocks) > hit.num_settled
        self.add(sequence, count)

    def has_runs(self, group: SequenceGroup, left: Room) -> bool:
        """Whether an allocator that reserves runs of blocks has those of a waiting group."""
        kv_cache = self.kv_cache
        if kv_cache.reserves_runs and left.num_running < len(self.running):
            lengths = (sequence.num_tokens for sequence in group.live)  # which runs is not known
            runs = sum(kv_cache.blocks_to_start(each, group.max_length) for each in lengths)
            return runs <= left.num_blocks
        return all(map(kv_cache.can_start, group.live))

    # ------------------------------------------------------------------ inside

    def _joins(self, group: SequenceGroup) -> None:
        """A group was admitted or resumed."""
        self._seqs_left = self.seqs_left - group.num_seqs
        self.running.append(group)

    def _could_return(self, group: SequenceGroup) -> bool:
        """Whether a running group could start again after a preemption, or has grown too large."""
        if self.preemptor.would_swap(group):
            return self.blocks_to_resume(group, 1) <= self.most_blocks
        fits = self.kv_cache.blocks_to_restore(group) <= self.most_blocks
        return fits and not self.outgrew_step(group)

    def _never_fits(self, group: SequenceGroup) -> bool:
        """Whether a preempted group has outgrown what it can be started again with."""
        if not group.num_preemptions:
            return False
        if self.kv_cache.blocks_to_restore(group) > self.most_blocks:
            return True
        may_be_cached = self.kv_cache.caches_prefixes and bool(self.running)
        return self.outgrew_step(group) and not may_be_cached

    def _count_to_resume(self, group: SequenceGroup, tokens_left: int) -> int:
        """Tokens of each sequence of a swapped group that the step computes."""
        live = group.live
        return min(self.take(live[0].num_pending), tokens_left) if len(live) == 1 else 1

    def _reserve(self, sequence: SequenceState, count: int) -> bool:
        """Reserve the blocks of a sequence that runs alone, if they are free and it has begun."""
        try:
            if sequence.table.blocks:  # else the others ended before it was started again
                self.kv_cache.reserve(sequence, count)
                return True
        except OutOfBlocks:
            pass
        return False

    def _grow_group(self, group: SequenceGroup) -> bool:
        """Grow a group that may need blocks; whether the step goes on to the next one."""
        live = group.live
        pending = [sequence.num_pending for sequence in live]
        if not all(pending):
            return True
        if (len(live) > 1 and max(pending) > 1) or not live[0].table.blocks:
            return self._catch_up(group) or not self.stops_at_preempted
        count = self.take(pending[0]) if len(live) == 1 else 1
        if len(live) * count > self.tokens_left:
            return False
        if not self.preempt_for(group, count):
            return not self.stops_at_preempted
        for sequence in live:
            if sequence.num_scheduled + count >= sequence.capacity:
                self.kv_cache.reserve(sequence, count)
            self.add(sequence, count)
        return True

    def _catch_up(self, group: SequenceGroup) -> bool:
        """Compute more of a group that is recomputed, each sequence as a prompt of its own.

        Returns:
            Whether it still runs.
        """
        for sequence in [sequence for sequence in group.live if sequence.num_pending > 1]:
            before = self.tokens_left
            while True:
                try:
                    self._compute_more(sequence)
                except OutOfBlocks:
                    if self._shares or not self.make_way(group):
                        return False
                else:
                    break
            if before - self.tokens_left < sequence.num_pending:
                break  # the next one may share what this one has yet to compute
        return True

    def _compute_more(self, sequence: SequenceState) -> None:
        """Compute a chunk of a sequence of a forked group, which may hold no blocks yet.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        if not sequence.table.blocks:  # what this step computes may yet be withdrawn: no sharing
            self._start_again(sequence, settled=True)
            return
        count = self.take(sequence.num_pending)
        if count:
            self.kv_cache.reserve(sequence, count)
            self.add(sequence, count)

    def _start_again(self, sequence: SequenceState, *, settled: bool) -> int:
        """Give a sequence of a forked group its first blocks; how many tokens were cached.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        length = sequence.num_tokens
        hit = self.kv_cache.lookup(sequence, length - 1, settled=settled)
        cached = len(hit.blocks) * self.kv_cache.block_size
        count = self.take(length - cached)
        if not count:
            return 0
        self.begin_sequence(sequence, count, hit, cached)
        return cached

    def _start(self, sequence: SequenceState) -> int | None:
        """Give a waiting sequence its first blocks; how many tokens were cached, if it fits."""
        kv_cache = self.kv_cache
        hit = kv_cache.lookup(sequence, sequence.num_tokens - 1)
        count = self._first_chunk(sequence, hit, self.room())
        if count is None or not kv_cache.can_start(sequence):
            return None
        cached = len(hit.blocks) * kv_cache.block_size
        self.begin_sequence(sequence, count, hit, cached)
        return cached

    def _first_chunk(self, sequence: SequenceState, hit: PrefixHit, left: Room) -> int | None:
        """Tokens of a waiting sequence's first chunk, if ``left`` has tokens and blocks for it."""
        kv_cache, length = self.kv_cache, sequence.num_tokens
        num_hits = len(hit.blocks)
        cached = num_hits * kv_cache.block_size
        count = self._first_count(length - cached, left.num_tokens)
        if count is None:
            return None
        blocks = left.num_blocks - hit.num_idle + num_hits - self.watermark(left)
        if kv_cache.blocks_for(length if self._reserve_full_sequence else cached + count) > blocks:
            return None
        lifetime = self.preemptor.lifetime(sequence.group)
        if lifetime and lifetime + self.preemptor.outstanding(self.running) > blocks:
            return None
        return count

    def _first_count(self, num_pending: int, tokens_left: int) -> int | None:
        """The same, by tokens alone: whole prompts take all of them or none."""
        count = min(num_pending, self.chunk or num_pending)
        if count > tokens_left and self._whole_prompts:
            if self.chunk or not self._chunk:
                return None
            count = self._chunk  # it is alone, and no step takes all of it
        return min(count, tokens_left)

    def _restore(self, group: SequenceGroup) -> int | None:
        """Start a forked group again, each sequence as its own prompt; as :meth:`_start`.

        One after the other, so that each shares what it has in common with those before it.
        """
        if not self.would_admit(group, self.room()):
            return None
        total = 0
        for sequence in group.live:
            before = self.tokens_left
            try:
                cached = self._start_again(sequence, settled=False)
            except OutOfBlocks:
                break  # it catches up when blocks are free
            total += cached
            if before - self.tokens_left < sequence.num_tokens - cached:
                break
        return total
