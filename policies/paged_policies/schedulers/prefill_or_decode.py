"""vLLM V0's scheduler: a step computes prompts or decodes, prompts first."""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from paged_core.component import ComponentSettings
from paged_core.interfaces.preemption import PreemptionMode
from paged_core.interfaces.scheduler import Queues, Schedule, Scheduler, SchedulerParts
from paged_core.kv_cache import PrefixHit
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_policies.schedulers.quanta import Quanta, fewest_to_preempt
from paged_policies.schedulers.sortable_deque import SortableDeque
from paged_policies.schedulers.step_budget import StepBudget


class PrefillOrDecodeSettings(ComponentSettings):
    """Options of :class:`PrefillOrDecodeScheduler`."""

    name: Literal["prefill_or_decode"] = "prefill_or_decode"
    max_num_batched_tokens: PositiveInt | None = Field(
        default=None,
        description="prompt tokens in one step, at most; null: max_model_len, at least 2048",
    )
    max_num_seqs: PositiveInt = Field(default=256, description="sequences that run, at most")
    delay_factor: NonNegativeFloat = Field(
        default=0.0,
        description="hold prompts back for this many times the last prompt step's duration",
    )
    exact_growth: bool = Field(
        default=False,
        description="decode if the blocks that it takes are free (nano-vLLM), instead of one for "
        "every sequence whether it needs one or not",
    )
    cached_is_free: bool = Field(
        default=False,
        description="what the prefix cache has of a prompt takes nothing from "
        "max_num_batched_tokens (nano-vLLM)",
    )
    swap_in_by_order: bool = Field(
        default=False,
        description="swap groups in by the queue order, after waiting requests that come before "
        "them, instead of before any waiting request",
    )


class PrefillOrDecodeScheduler(Scheduler):
    """Whole prompts while any fits, else one token for every running sequence.

    The rules are those of vLLM 0.6.3's V0 engine: admission ignores what the prefix cache would
    serve, a group of k sequences decodes only if k blocks are free, victims are recomputed or
    swapped as groups, and swapped groups are resumed before any prompt, unless
    ``swap_in_by_order``. A forked group that is recomputed, which that engine lacks, takes each
    sequence as a prompt of its own.

    Under an order that has quanta, running groups are preempted for the one that comes next only
    once their quantum is over, and ``swap_in_by_order`` is on.
    """

    preempts_for_head: ClassVar[bool] = True
    """Whether a running group is preempted for a better waiting one; of use where that may join."""

    def __init__(self, options: PrefillOrDecodeSettings, parts: SchedulerParts, /) -> None:
        self._budget = options.max_num_batched_tokens or max(parts.max_model_len, 2048)
        self._max_num_seqs = options.max_num_seqs
        self._kv = parts.kv_cache
        self._order = parts.queue_order
        self._victim = parts.victim
        self._preemptor = parts.preemptor
        self._quanta = Quanta(parts.queue_order, parts.preemptor)
        self._ends_quanta = self.preempts_for_head and self._quanta.exist
        self._exact_growth = options.exact_growth
        self._cached_is_free = options.cached_is_free
        self._swap_in_by_order = options.swap_in_by_order or self._ends_quanta
        self._max_model_len = parts.max_model_len
        self._waiting = SortableDeque(parts.queue_order)
        self._running: list[SequenceGroup] = []
        self._swapped: deque[SequenceGroup] = deque()
        self._restoring: SequenceGroup | None = None
        self._delay = _Delay(options.delay_factor)
        self._now = 0.0

    @property
    def max_num_seqs(self) -> int:
        return self._max_num_seqs

    @property
    def length_cap(self) -> int:
        return self._max_model_len + 1

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running) + len(self._swapped)

    def queues(self) -> Queues:
        return Queues(tuple(self._running), tuple(self._waiting), tuple(self._swapped))

    def refuse(self, group: SequenceGroup, /) -> str | None:
        if group.num_seqs > self._budget:
            return (
                f"its {group.num_seqs} sequences decode together, and a step takes {self._budget} "
                "tokens (scheduler.max_num_batched_tokens)"
            )
        return self._preemptor.refuse(group, self._most_blocks())

    def add(self, group: SequenceGroup, /) -> None:
        self._waiting.append(group, self._now)

    def remove(self, group: SequenceGroup, /) -> None:
        if group is self._restoring:
            self._restoring = None
        if group in self._running:
            self._running.remove(group)
        elif group in self._swapped:
            self._swapped.remove(group)
        else:
            self._waiting.remove(group)

    def schedule(self, now: float, /) -> Schedule:
        self._now = now
        plan = Schedule()
        if self._swapped and self._swap_in_by_order:
            self._swapped = deque(sorted(self._swapped, key=lambda g: self._order.key(g, now)))
            self._waiting.sort(now)
        may_start = not self._swapped or self._restoring is not None or self._overtakes()
        if may_start and self._is_open():
            self._prefill(plan)
        if not plan.sequences:
            self._make_way_for_head(plan)
            if self._decode(plan):
                self._swap_in(plan)
        return plan

    def _overtakes(self) -> bool:
        """Whether the head of the queue goes before the first swapped group."""
        if not (self._swap_in_by_order and self._waiting and self._swapped):
            return False
        key, now = self._order.key, self._now
        return bool(key(self._waiting[0], now) < key(self._swapped[0], now))

    def _is_open(self) -> bool:
        """Whether prompts may join the running batch."""
        return True

    def _most_blocks(self) -> int:
        """Blocks that one group can have."""
        return self._kv.num_blocks - self._kv.watermark_blocks

    # ------------------------------------------------------------------ prompts

    def _prefill(self, plan: Schedule) -> None:
        waiting, tokens_left = self._waiting, self._budget
        if self._restoring is not None:  # one step was too small for all of its sequences
            tokens_left = self._start(plan, self._restoring, tokens_left)
        seqs_left = self._num_seqs_left()
        was_idle = not self._running
        while self._restoring is None and self._delay.passed(self._now, waiting, was_idle):
            if not waiting or (self._swapped and not self._overtakes()):
                break
            group = waiting[0]
            if reason := self._outgrown(group):
                self._preemptor.give_up(plan, waiting.popleft(), reason)
                continue
            if group.num_seqs > seqs_left or not self._has_blocks(group):
                break
            if self._cost(group.live[0]) > tokens_left:
                break
            self._running.append(waiting.popleft())
            seqs_left -= group.num_seqs
            tokens_left = self._start(plan, group, tokens_left)
            num_cached = sum(sequence.num_scheduled for sequence in group.live)
            plan.admitted.append((group, num_cached))
        if plan.admitted:
            self._delay.admitted()

    def _start(self, plan: Schedule, group: SequenceGroup, tokens_left: int) -> int:
        """Compute the prompts of a group's sequences while tokens are left; return what is left.

        No other group runs until all of its sequences are started, so the blocks that were free
        for it when it was admitted still are.
        """
        for sequence in group.live:
            if sequence.table.blocks:
                continue
            cost = self._cost(sequence)
            if cost > tokens_left:
                self._restoring = group
                return tokens_left
            tokens_left -= cost
            self._compute_prompt(plan, sequence)
        self._restoring = None
        return tokens_left

    def _cost(self, sequence: SequenceState) -> int:
        """Tokens of the budget that a prompt takes."""
        length = sequence.num_tokens
        if not self._cached_is_free:
            return length
        return length - self._num_skipped(self._kv.lookup(sequence, length), length)

    def _num_skipped(self, hit: PrefixHit, length: int) -> int:
        """Tokens that need not be computed: those of the last block always are."""
        return min(hit.num_settled, self._kv.blocks_for(length) - 1) * self._kv.block_size

    def _compute_prompt(self, plan: Schedule, sequence: SequenceState) -> None:
        """Share what is cached and compute the rest."""
        length = sequence.num_tokens
        hit = self._kv.lookup(sequence, length)
        skipped = self._num_skipped(hit, length)
        self._kv.admit(sequence, length - skipped, hit, skipped)
        plan.add(sequence, length - skipped)

    def _num_seqs_left(self) -> int:
        """Sequences that may run beside those that do; below 1, none, however far below."""
        max_num_seqs = self._max_num_seqs
        if len(self._running) >= max_num_seqs:
            return 0  # the usual case is not to be counted in every step
        return max_num_seqs - sum(group.num_seqs for group in self._running)

    def _outgrown(self, group: SequenceGroup) -> str | None:
        """Say why a waiting group can never be admitted, or return ``None``."""
        longest = _longest(group)
        if longest > min(self._max_model_len, self._budget):
            return (
                f"its {longest} tokens are more than one step takes "
                "(scheduler.max_num_batched_tokens)"
            )
        needed = self._kv.blocks_to_restore(group)
        if needed > self._most_blocks():
            return f"it needs {needed} of {self._kv.num_blocks} blocks"
        return None

    def _has_blocks(self, group: SequenceGroup) -> bool:
        """Whether the blocks are free that a waiting group takes."""
        needed = self._preemptor.blocks_to_admit(group, self._running)
        return needed + self._kv.watermark_blocks <= self._kv.num_free and all(
            self._kv.can_start(sequence) for sequence in group.live
        )

    # ------------------------------------------------------------------ requests that come first

    def _make_way_for_head(self, plan: Schedule) -> None:
        """Put all in order, and preempt running groups worse than the head of the queue for it."""
        running, waiting, now, key = self._running, self._waiting, self._now, self._order.key
        running.sort(key=lambda group: key(group, now))
        if self._ends_quanta:
            self._end_quanta(plan)
        if not waiting:
            return
        if self.preempts_for_head and not self._ends_quanta:
            head = waiting.popleft()
            while running and key(running[-1], now) > key(head, now) and not self._fits(head):
                if self._preemptor.lifetime(running[-1]):
                    break  # its blocks are reserved to its end
                self._preempt(plan, running[-1])
            waiting.appendleft(head, now)
        waiting.sort(now)

    def _fits(self, group: SequenceGroup) -> bool:
        """Whether ``group`` could be admitted into a step that computes nothing else."""
        needed = self._kv.blocks_to_restore(group)
        return (
            self._kv.num_free - needed >= self._kv.watermark_blocks
            and _longest(group) <= self._budget
            and group.num_seqs <= self._num_seqs_left()
        )

    def _end_quanta(self, plan: Schedule) -> None:
        """Preempt running groups whose quantum is over for the group that comes next.

        Only if that one comes before them, could not start beside them, and can once they are
        preempted. The last in the order first, and no more than necessary.
        """
        running, swapped, waiting, now = self._running, self._swapped, self._waiting, self._now
        spent = self._quanta.spent(running, now) if swapped or waiting else []
        if not spent:
            return
        waiting.sort(now)
        first = swapped[0] if swapped and not self._overtakes() else waiting[0]
        behind = [g for g in self._quanta.behind(first, spent, now) if self._could_return(g)]
        if not behind:
            return
        for group in fewest_to_preempt(
            behind,
            StepBudget(
                self._max_num_seqs - sum(group.num_seqs for group in running),
                self._budget - sum(len(group.live) for group in running),
                self._kv.num_free,
                len(running),
            ),
            freed_by=self._freed_by,
            suffices=lambda left: self._would_start(first, left),
        ):
            self._preempt(plan, group)

    def _could_return(self, group: SequenceGroup) -> bool:
        """Whether a running group could start again after a preemption, or has grown too large."""
        kv, most = self._kv, self._most_blocks()
        if self._preemptor.would_swap(group):
            return kv.distinct_blocks(group) + len(group.live) <= most
        fits_step = _longest(group) <= min(self._max_model_len, self._budget)
        return fits_step and kv.blocks_to_restore(group) <= most

    def _freed_by(self, group: SequenceGroup) -> StepBudget:
        """What the preemption of a running group adds to what is left."""
        return StepBudget(group.num_seqs, len(group.live), self._kv.distinct_blocks(group), -1)

    def _would_start(self, group: SequenceGroup, left: StepBudget) -> bool:
        """Whether a waiting or swapped group could start, given what is ``left``."""
        kv, live = self._kv, group.live
        if group.num_seqs > left.num_seqs:
            return False
        if group.status is Status.SWAPPED:
            needed = kv.distinct_blocks(group) + len(live)
            return left.num_blocks - needed >= kv.watermark_blocks and left.num_tokens >= len(live)
        needed = self._preemptor.blocks_to_admit(group, self._running)
        if _longest(group) > self._budget or left.num_blocks - needed < kv.watermark_blocks:
            return False
        if kv.reserves_runs and left.num_running < len(self._running):  # which runs is not known
            runs = sum(kv.blocks_to_start(s.num_tokens, group.max_length) for s in live)
            return runs <= left.num_blocks
        return all(kv.can_start(sequence) for sequence in live)

    # ------------------------------------------------------------------ decoding

    def _decode(self, plan: Schedule) -> bool:
        """Decode every running sequence; whether no group was preempted for want of blocks."""
        kv, running = self._kv, Status.RUNNING
        sequences, num_tokens = plan.sequences, plan.num_tokens
        num_free, undisturbed = kv.num_free, True
        for group in tuple(self._running):
            if not undisturbed and group.status is not running:
                continue  # preempted for one before it
            live = group.live
            if len(live) == 1 and num_free:
                sequence = live[0]
                start = sequence.num_scheduled
                if len(sequence.tokens) - start + sequence.num_unknown:  # else it waits for a step
                    if start + 1 >= sequence.capacity:
                        kv.reserve(sequence, 1)
                        num_free = kv.num_free
                    sequences.append(sequence)
                    num_tokens.append(1)
                continue
            if not self._decode_group(plan, group):
                undisturbed = False
            num_free = kv.num_free
        return undisturbed

    def _decode_group(self, plan: Schedule, group: SequenceGroup) -> bool:
        """The same for a group that may need blocks; whether they were free."""
        kv, live = self._kv, group.live
        if not all(sequence.num_pending for sequence in live):
            return True  # it waits for a step under way
        num_free = kv.num_free
        enough = num_free >= len(live) or num_free >= self._blocks_to_decode(group)
        if enough or self._free_blocks_for(plan, group):
            for sequence in live:
                if sequence.num_scheduled + 1 >= sequence.capacity:
                    kv.reserve(sequence, 1)
                plan.add(sequence, 1)
        return enough

    def _blocks_to_decode(self, group: SequenceGroup) -> int:
        """Blocks that must be free for the group to decode: at most one for each sequence."""
        if self._exact_growth or self._preemptor.lifetime(group):
            return self._kv.blocks_to_grow(group)
        return len(group.live)

    def _free_blocks_for(self, plan: Schedule, group: SequenceGroup) -> bool:
        """Preempt groups until ``group`` can decode; whether it was not preempted itself."""
        running = self._running
        while self._kv.num_free < self._blocks_to_decode(group):
            index = running.index(group)
            # the first one is no candidate while it is not alone, so that it ends in any case
            victim = self._victim.choose(running[index or 1 :] or [group], self._now)
            self._preempt(plan, victim)
            if victim is group:
                return False
        return True

    def _preempt(self, plan: Schedule, group: SequenceGroup) -> None:
        self._running.remove(group)
        if self._preemptor.preempt(plan, group, self._now) is PreemptionMode.SWAP:
            self._swapped.append(group)
        else:
            self._waiting.appendleft(group, self._now)

    # ------------------------------------------------------------------ swapped requests

    def _swap_in(self, plan: Schedule) -> None:
        kv, swapped = self._kv, self._swapped
        while swapped and not self._overtakes():
            group = swapped[0]
            if self._ends_quanta and group in plan.swapped_out:
                break
            needed = kv.distinct_blocks(group) + len(group.live)
            if needed > self._most_blocks():
                reason = f"it needs {needed} of {kv.num_blocks} blocks"
                self._preemptor.give_up(plan, swapped.popleft(), reason)
                continue
            if (
                kv.num_free - needed < kv.watermark_blocks
                or group.num_seqs > self._num_seqs_left()
                or len(plan.sequences) + len(group.live) > self._budget
            ):
                break
            self._preemptor.resume(plan, swapped.popleft())
            self._running.append(group)
            if not all(sequence.num_pending for sequence in group.live):
                continue  # it waits for a step under way
            for sequence in group.live:
                kv.reserve(sequence, 1)
                plan.add(sequence, 1)


def _longest(group: SequenceGroup) -> int:
    """Tokens of the longest sequence."""
    return max(sequence.num_tokens for sequence in group.live)


class _Delay:
    """When prompts may be admitted: not before the last batch of them has paid off.

    With ``factor`` 0, at once; else when the oldest one has waited longer than ``factor`` times
    the time that the last step with prompts took, or when nothing runs.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._last_now = 0.0
        self._last_latency = 0.0
        self._has_admitted = False

    def passed(self, now: float, waiting: SortableDeque, is_idle: bool) -> bool:
        if self._has_admitted:
            self._last_latency = now - self._last_now
        self._last_now, self._has_admitted = now, False
        if not self._factor or not waiting or is_idle:
            return True
        oldest = min(group.arrival for group in waiting)
        return now - oldest > self._factor * self._last_latency

    def admitted(self) -> None:
        """The step evaluated last admitted something."""
        self._has_admitted = True
