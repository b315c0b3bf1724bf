"""Limits of a step: what it takes to start groups and to let them grow, and what is left."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from paged_core.cache.kv_cache import PrefixHit
from paged_core.engine.contexts import SchedulerContext
from paged_core.interfaces.scheduler import Schedule
from paged_core.requests.checks import size_problem
from paged_core.sequence import SequenceGroup, SequenceState, Status


@dataclass(frozen=True, slots=True)
class Room:
    """Room that a step has left for further groups; below 0 where running ones take too much."""

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


class Limits:
    """The limits of a step, by the rules of vLLM's V1 engine: answers, which change nothing.

    A scheduler with other rules overrides them, and gives its limits to its planner.

    Args:
        parts: what the factory of the scheduler got.
        running: the scheduler's running groups, in the order in which they were admitted.
        num_tokens: computed in one step, at most; ``None``: any number.
        num_seqs: sequences that run, at most.
        chunk: tokens of one sequence in one step, at most; 0: no such limit.
        whole_prompts: start a prompt only in a step that takes all of it, or a ``chunk``.
        reserve_full_sequence: start a prompt only if blocks are free for all of it.
    """

    stops_at_preempted = True
    """True if no more groups grow in a step after one that has to be preempted itself."""
    spare_blocks = 0
    """Blocks that must be free for each sequence that grows, whether it takes one or not."""

    def __init__(
        self,
        context: SchedulerContext,
        running: list[SequenceGroup],
        *,
        num_seqs: int,
        num_tokens: int | None = None,
        chunk: int = 0,
        whole_prompts: bool = False,
        reserve_full_sequence: bool = True,
    ) -> None:
        self.kv_cache = context.kv_cache
        self._block_size = context.kv_cache.block_size
        self.preemptor = context.preemptor
        self.max_model_len = context.max_model_len
        self.running = running
        self.num_tokens = sys.maxsize if num_tokens is None else num_tokens
        self.num_seqs = num_seqs
        self._chunk = chunk
        self._whole_prompts = whole_prompts
        self._reserve_full_sequence = reserve_full_sequence
        self.plan = Schedule()
        """The step so far."""
        self.chunk = chunk
        """Tokens of one sequence at most, in this step; the scheduler may change it."""
        self.tokens_left = self.num_tokens
        self._seqs_left: int | None = None

    def begin(self, plan: Schedule) -> None:
        """Note that a step begins, of which nothing is planned yet."""
        self.plan, self.chunk = plan, self._chunk
        self.tokens_left, self._seqs_left = self.num_tokens, None

    def joins(self, group: SequenceGroup) -> None:
        """Note that a group is about to join the running ones."""
        self._seqs_left = self.seqs_left - group.num_seqs

    def leaves(self) -> None:
        """Note that a group has left the running ones."""
        self._seqs_left = None

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
    def most_blocks(self) -> int:
        """Blocks that one group can have."""
        return self.kv_cache.num_blocks

    def room(self, num_free: int | None = None) -> Room:
        """Return the room that the step has left now; ``num_free``: blocks, if that is known."""
        if num_free is None:
            num_free = self.kv_cache.num_free
        return Room(self.seqs_left, self.tokens_left, num_free, len(self.running))

    def take(self, num_tokens: int) -> int:
        """Return how many of ``num_tokens`` of one sequence the step may compute."""
        return min(num_tokens, self.chunk or num_tokens, self.tokens_left)

    def refuse(self, group: SequenceGroup) -> str | None:
        """Say why a group could never run even alone, or return ``None``."""
        length = len(group.request.prompt)
        if group.request.least_length > self.max_model_len:
            return f"the prompt has {length} tokens, but max_model_len is {self.max_model_len}"
        if reason := self.refuse_width(group, self.num_tokens):
            return reason
        if self._whole_prompts and min(length, self._chunk or length) > self.num_tokens:
            return (
                f"the prompt has {length} tokens, more than one step takes without chunked "
                f"prefill (scheduler.max_num_batched_tokens={self.num_tokens})"
            )
        reason = self.preemptor.refuse(group, self.most_blocks)
        return reason or size_problem(length, self.kv_cache, group.max_length)

    def refuse_width(self, group: SequenceGroup, num_tokens: int) -> str | None:
        """Say that a group has more sequences than a step takes tokens, or return ``None``."""
        if group.num_seqs <= num_tokens:
            return None
        return (
            f"its {group.num_seqs} sequences decode together, and a step takes {num_tokens} "
            "tokens (scheduler.max_num_batched_tokens)"
        )

    # ------------------------------------------------------------------ running groups

    def claim(self, group: SequenceGroup) -> tuple[int, int]:
        """Tokens and blocks that a running group is to get in this step."""
        counts = [self.take(sequence.num_pending) for sequence in group.live]
        return sum(counts), self.kv_cache.blocks_to_grow(group, max(counts))

    def blocks_to_grow(self, group: SequenceGroup, num_tokens: int) -> int:
        """Blocks that must be free for each sequence of a running group to grow."""
        return self.kv_cache.blocks_to_grow(group, num_tokens)

    def could_return(self, group: SequenceGroup) -> bool:
        """Return whether a running group could start again after a preemption."""
        if self.preemptor.would_swap(group):
            return self.blocks_to_resume(group, 1) <= self.most_blocks
        fits = self.kv_cache.blocks_to_restore(group) <= self.most_blocks
        return fits and not self.outgrew_step(group)

    # ------------------------------------------------------------------ groups that start

    def would_start(self, group: SequenceGroup, left: Room) -> bool:
        """Return whether a waiting or swapped group could start in this step with this room."""
        if group.num_seqs > left.num_seqs:
            return False
        if group.status is not Status.SWAPPED:
            return self.would_admit(group, left)
        count = self.count_to_resume(group, left.num_tokens)
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
        return self.first_chunk(sequence, hit, left) is not None and self.has_runs(group, left)

    def first_chunk(self, sequence: SequenceState, hit: PrefixHit, left: Room) -> int | None:
        """Tokens of a waiting sequence's first chunk, if ``left`` has tokens and blocks for it."""
        size, length = self._block_size, sequence.num_tokens
        num_hits = len(hit.blocks)
        cached = num_hits * size
        count = self._first_count(length - cached, left.num_tokens)
        if count is None:
            return None
        blocks = left.num_blocks - hit.num_idle + num_hits - self.watermark(left)
        if -(-(length if self._reserve_full_sequence else cached + count) // size) > blocks:
            return None
        if self.preemptor.reserves:
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

    def has_runs(self, group: SequenceGroup, left: Room) -> bool:
        """Return whether an allocator that reserves runs of blocks has those of a waiting group."""
        kv_cache = self.kv_cache
        if kv_cache.reserves_runs and left.num_running < len(self.running):
            lengths = (sequence.num_tokens for sequence in group.live)  # which runs is not known
            runs = sum(kv_cache.blocks_to_start(each, group.max_length) for each in lengths)
            return runs <= left.num_blocks
        return all(map(kv_cache.can_start, group.live))

    def watermark(self, left: Room) -> int:
        """Blocks that have to stay free when a group starts."""
        return self.kv_cache.watermark_blocks if left.num_running else 0

    def count_to_resume(self, group: SequenceGroup, tokens_left: int) -> int:
        """Tokens of each sequence of a swapped group that the step computes."""
        live = group.live
        return min(self.take(live[0].num_pending), tokens_left) if len(live) == 1 else 1

    def blocks_to_resume(self, group: SequenceGroup, num_tokens: int) -> int:
        """Blocks that must be free, watermark apart, to swap a group in and have it grow."""
        held = self.kv_cache.distinct_blocks(group)
        return held + self.kv_cache.blocks_to_grow(group, num_tokens)

    def never_fits(self, group: SequenceGroup) -> bool:
        """Return whether a preempted group has outgrown what it can be started again with."""
        if not group.num_preemptions:
            return False
        if self.kv_cache.blocks_to_restore(group) > self.most_blocks:
            return True
        may_be_cached = self.kv_cache.caches_prefixes and bool(self.running)
        return self.outgrew_step(group) and not may_be_cached

    def outgrew_step(self, group: SequenceGroup) -> bool:
        """Return whether no step takes all the tokens of a waiting group, nor part of them."""
        length = group.longest
        return (
            self._whole_prompts
            and len(group.live) == 1
            and min(length, self._chunk or length) > self.num_tokens
        )
