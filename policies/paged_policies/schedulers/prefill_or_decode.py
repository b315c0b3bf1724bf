"""vLLM V0's scheduler: a step computes prompts or decodes, prompts first."""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from paged_core.component import ComponentSettings
from paged_core.errors import OutOfBlocks
from paged_core.interfaces.preemption import PreemptionMode
from paged_core.interfaces.scheduler import Queues, Schedule, Scheduler, SchedulerParts
from paged_core.kv_cache import PrefixHit
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_policies.schedulers.promises import Promises
from paged_policies.schedulers.quanta import Quanta
from paged_policies.schedulers.room import Room
from paged_policies.schedulers.waiting_line import WaitingLine


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
        description="what was swapped out comes back by the queue order, after those who wait and "
        "come before it, instead of before anybody who waits",
    )


class PrefillOrDecodeScheduler(Scheduler):
    """Whole prompts while any fits, else one token for everyone who runs.

    The rules are those of vLLM 0.6.3's V0 engine: admission ignores what the prefix cache would
    serve, a group of k sequences decodes only if k blocks are free, victims are recomputed or
    swapped as groups, and what is swapped out comes back before any prompt, unless
    ``swap_in_by_order``. A forked group that is computed again, which that engine lacks, takes each
    sequence as a prompt of its own.

    Under an order that has quanta, running groups make room for the one that comes next only once
    their quantum is over, and ``swap_in_by_order`` is on.
    """

    preempts_for_head: ClassVar[bool] = True
    """Whether one that runs gives way to a better one that waits; of use where that may join."""

    def __init__(self, options: PrefillOrDecodeSettings, parts: SchedulerParts, /) -> None:
        self._budget = options.max_num_batched_tokens or max(parts.max_model_len, 2048)
        self._max_num_seqs = options.max_num_seqs
        self._kv = parts.kv_cache
        self._order = parts.queue_order
        self._victim = parts.victim
        self._preemption = parts.preemption
        self._promises = Promises(parts.preemption, parts.kv_cache)
        self._quanta = Quanta(parts.queue_order, self._promises)
        self._ends_quanta = self.preempts_for_head and self._quanta.exist
        self._exact_growth = options.exact_growth
        self._cached_is_free = options.cached_is_free
        self._swap_in_by_order = options.swap_in_by_order or self._ends_quanta
        self._max_model_len = parts.max_model_len
        self._waiting = WaitingLine(parts.queue_order)
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

    def add(self, group: SequenceGroup, /) -> None:
        self._waiting.append(group, self._now)

    def refuse(self, group: SequenceGroup, /) -> str | None:
        if group.seats > self._budget:
            return (
                f"its {group.seats} sequences decode together, and a step takes {self._budget} "
                "tokens (scheduler.max_num_batched_tokens)"
            )
        return self._promises.refuse(group, self._kv.num_blocks - self._kv.watermark_blocks)

    def remove(self, group: SequenceGroup, /) -> None:
        if group is self._restoring:
            self._restoring = None
        if group in self._running:
            self._running.remove(group)
        elif group in self._swapped:
            self._swapped.remove(group)
        else:
            self._waiting.remove(group)

    def queues(self) -> Queues:
        return Queues(tuple(self._running), tuple(self._waiting), tuple(self._swapped))

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
            self._preempt_for_head(plan)
            if self._decode(plan):
                self._swap_in(plan)
        return plan

    # ------------------------------------------------------------------ prompts

    def _is_open(self) -> bool:
        """Whether prompts may join those that run."""
        return True

    def _prefill(self, plan: Schedule) -> None:
        kv, waiting = self._kv, self._waiting
        tokens_left = self._restore(plan)
        seats_left = self._seats_left()
        was_idle = not self._running
        while self._restoring is None and self._delay.passed(self._now, waiting, was_idle):
            if not waiting or (self._swapped and not self._overtakes()):
                break
            group = waiting[0]
            lengths = [len(sequence.tokens) for sequence in group.live]
            needed = kv.blocks_to_restore(group)
            if max(lengths) > min(self._max_model_len, self._budget):
                self._ignore(
                    plan,
                    f"its {max(lengths)} tokens are more than one step takes "
                    "(scheduler.max_num_batched_tokens)",
                )
                continue
            if kv.num_blocks - needed < kv.watermark_blocks:
                self._ignore(plan, f"it needs {needed} of {kv.num_blocks} blocks")
                continue
            if lifetime := self._promises.lifetime(group):
                needed = lifetime + self._promises.outstanding(self._running)
            if kv.num_free - needed < kv.watermark_blocks:
                break
            if not all(kv.can_start(sequence) for sequence in group.live):
                break
            total = sum(lengths)
            if len(lengths) == 1:
                total = self._cost(group.live[0])
            over_budget = total > tokens_left and (
                len(lengths) == 1 or self._cost(group.live[0]) > tokens_left
            )
            if over_budget or group.seats > seats_left:
                break
            waiting.popleft()
            group.status = Status.RUNNING
            self._running.append(group)
            seats_left -= group.seats
            plan.admitted.append((group, 0))
            self._restoring = group
            tokens_left = self._start(plan, tokens_left)
        if plan.admitted:
            self._delay.admitted()

    def _restore(self, plan: Schedule) -> int:
        """Go on with a forked group that one step was too small for; return what is left of it."""
        if self._restoring is None:
            return self._budget
        return self._start(plan, self._budget)

    def _start(self, plan: Schedule, tokens_left: int) -> int:
        """Compute the prompts of the group being started, as far as the budget lasts.

        Nothing else runs until all of its sequences are started, so the blocks that were free for
        it when it was admitted still are.
        """
        group = self._restoring
        assert group is not None
        for sequence in group.live:
            if sequence.table.blocks:
                continue
            cost = self._cost(sequence)
            if cost > tokens_left:
                return tokens_left
            tokens_left -= cost
            cached = self._compute_prompt(plan, sequence)
            if plan.admitted and plan.admitted[-1][0] is group:
                plan.admitted[-1] = (group, plan.admitted[-1][1] + cached)
        self._restoring = None
        return tokens_left

    def _compute_prompt(self, plan: Schedule, sequence: SequenceState) -> int:
        """Share what is cached, compute the rest; how many tokens need not be computed."""
        kv, length = self._kv, len(sequence.tokens)
        hit = kv.lookup(sequence, length)
        skipped = self._num_skipped(hit, length)
        kv.admit(sequence, length - skipped, hit, skipped)
        plan.sequences.append(sequence)
        plan.num_tokens.append(length - skipped)
        return skipped

    def _cost(self, sequence: SequenceState) -> int:
        """Tokens of the budget that a prompt takes."""
        length = len(sequence.tokens)
        if not self._cached_is_free:
            return length
        return length - self._num_skipped(self._kv.lookup(sequence, length), length)

    def _num_skipped(self, hit: PrefixHit, length: int) -> int:
        """Tokens that need not be computed: those of the last block always are."""
        return min(hit.num_settled, self._kv.blocks_for(length) - 1) * self._kv.block_size

    def _ignore(self, plan: Schedule, reason: str) -> None:
        plan.ignored.append((self._waiting.popleft(), reason))

    # ------------------------------------------------------------------ decoding

    def _preempt_for_head(self, plan: Schedule) -> None:
        """Put all in order, and let the head of the queue push out groups worse than it."""
        running, waiting, now, key = self._running, self._waiting, self._now, self._order.key
        running.sort(key=lambda group: key(group, now))
        if self._ends_quanta:
            self._end_quanta(plan)
        if not waiting:
            return
        if self.preempts_for_head and not self._ends_quanta:
            head = waiting.popleft()
            while running and key(running[-1], now) > key(head, now) and not self._fits(head):
                if self._promises.lifetime(running[-1]):
                    break  # it was admitted to run to its end
                self._give_way(plan, running.pop())
            waiting.appendleft(head, now)
        waiting.sort(now)

    def _end_quanta(self, plan: Schedule) -> None:
        """Let running groups whose quantum is over give way to the one that comes next.

        Only if that one comes before them, could not start beside them, and can once they have
        left. The last in the order leaves first, and no more leave than have to.
        """
        running, swapped, waiting, now = self._running, self._swapped, self._waiting, self._now
        spent = self._quanta.spent(running, now) if swapped or waiting else []
        if not spent:
            return
        waiting.sort(now)
        first = swapped[0] if swapped and not self._overtakes() else waiting[0]
        behind = [g for g in self._quanta.behind(first, spent, now) if self._could_return(g)]
        seats = self._max_num_seqs - sum(group.seats for group in running)
        tokens = self._budget - sum(len(group.live) for group in running)
        room = Room(seats, tokens, self._kv.num_free, len(running))
        leaving: list[SequenceGroup] = []
        while not self._would_start(first, room):
            if not behind:
                return
            group = behind.pop()
            leaving.append(group)
            blocks = self._kv.distinct_blocks(group)
            room.widen(seats=group.seats, tokens=len(group.live), blocks=blocks)
        for group in leaving:
            running.remove(group)
            self._give_way(plan, group)

    def _could_return(self, group: SequenceGroup) -> bool:
        """Whether a running group could start again if it gave way: it may have grown too large."""
        kv = self._kv
        most = kv.num_blocks - kv.watermark_blocks
        held = kv.distinct_blocks(group)
        if self._preemption.mode(group) is PreemptionMode.SWAP and held <= kv.num_free_host:
            return held + len(group.live) <= most
        longest = max(len(sequence.tokens) for sequence in group.live)
        fits_step = longest <= min(self._max_model_len, self._budget)
        return fits_step and kv.blocks_to_restore(group) <= most

    def _would_start(self, group: SequenceGroup, room: Room) -> bool:
        """Whether a group that waits or is swapped out could start, given ``room``."""
        kv, live = self._kv, group.live
        if group.seats > room.seats:
            return False
        if group.status is Status.SWAPPED:
            needed = kv.distinct_blocks(group) + len(live)
            return room.blocks - needed >= kv.watermark_blocks and room.tokens >= len(live)
        lengths = [len(sequence.tokens) for sequence in live]
        needed = kv.blocks_to_restore(group)
        if lifetime := self._promises.lifetime(group):
            needed = lifetime + self._promises.outstanding(self._running)
        if max(lengths) > self._budget or room.blocks - needed < kv.watermark_blocks:
            return False
        if kv.reserves_runs and room.num_running < len(self._running):  # where they lie is open
            runs = sum(kv.blocks_to_start(length, group.max_length) for length in lengths)
            return runs <= room.blocks
        return all(kv.can_start(sequence) for sequence in live)

    def _fits(self, group: SequenceGroup) -> bool:
        """Whether ``group`` could be admitted into a step that computes nothing else."""
        lengths = [len(sequence.tokens) for sequence in group.live]
        needed = self._kv.blocks_to_restore(group)
        return (
            self._kv.num_free - needed >= self._kv.watermark_blocks
            and max(lengths) <= self._budget
            and group.seats <= self._seats_left()
        )

    def _decode(self, plan: Schedule) -> bool:
        """One token for every sequence that runs; whether nothing had to give way."""
        kv, running = self._kv, self._running
        sequences, num_tokens = plan.sequences, plan.num_tokens
        index, undisturbed = 0, True
        num_free = kv.num_free
        while index < len(running):
            group = running[index]
            live = group.live
            while num_free < len(live) and num_free < self._blocks_to_decode(group):
                undisturbed = False
                # the first one is spared while it is not alone, so that it ends in any case
                victim = self._victim.choose(running[index or 1 :] or [group], self._now)
                running.remove(victim)
                self._give_way(plan, victim)
                num_free = kv.num_free
                if victim is group:
                    break
            else:
                for sequence in live:
                    if sequence.num_scheduled + 1 >= sequence.capacity:
                        kv.reserve(sequence, 1)
                        num_free = kv.num_free
                    sequences.append(sequence)
                    num_tokens.append(1)
                index += 1
        return undisturbed

    def _blocks_to_decode(self, group: SequenceGroup) -> int:
        """Blocks that must be free for the group to decode: at most one for each sequence."""
        if self._exact_growth or self._promises.lifetime(group):
            return self._kv.blocks_to_grow(group)
        return len(group.live)

    def _give_way(self, plan: Schedule, victim: SequenceGroup) -> None:
        if self._preemption.mode(victim) is PreemptionMode.SWAP:
            try:
                self._kv.swap_out(victim)
            except OutOfBlocks:
                pass  # no room on the host either: it will be computed again
            else:
                victim.give_way(Status.SWAPPED, self._now)
                self._swapped.append(victim)
                plan.swapped_out.append(victim)
                return
        self._kv.release_group(victim)
        victim.give_way(Status.WAITING, self._now)
        self._waiting.appendleft(victim, self._now)
        plan.preempted.append(victim)

    def _swap_in(self, plan: Schedule) -> None:
        kv, swapped = self._kv, self._swapped
        while swapped and not self._overtakes():
            group = swapped[0]
            if self._ends_quanta and group in plan.swapped_out:
                break
            needed = kv.distinct_blocks(group) + len(group.live)
            if needed > kv.num_blocks - kv.watermark_blocks:
                swapped.popleft()
                kv.release_group(group)
                plan.ignored.append((group, f"it needs {needed} of {kv.num_blocks} blocks"))
                continue
            if (
                kv.num_free - needed < kv.watermark_blocks
                or group.seats > self._seats_left()
                or len(plan.sequences) + len(group.live) > self._budget
            ):
                break
            swapped.popleft()
            kv.swap_in(group)
            group.status = Status.RUNNING
            self._running.append(group)
            plan.swapped_in.append(group)
            for sequence in group.live:
                kv.reserve(sequence, 1)
                plan.sequences.append(sequence)
                plan.num_tokens.append(1)

    def _overtakes(self) -> bool:
        """Whether the head of the queue goes before those that are swapped out."""
        if not (self._swap_in_by_order and self._waiting and self._swapped):
            return False
        key, now = self._order.key, self._now
        return bool(key(self._waiting[0], now) < key(self._swapped[0], now))

    def _seats_left(self) -> int:
        """Sequences that may join those that run; below 1, none, however far below."""
        max_num_seqs = self._max_num_seqs
        if len(self._running) >= max_num_seqs:
            return 0  # the usual case is not to be counted in every step
        return max_num_seqs - sum(group.seats for group in self._running)


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

    def passed(self, now: float, waiting: WaitingLine, is_idle: bool) -> bool:
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
