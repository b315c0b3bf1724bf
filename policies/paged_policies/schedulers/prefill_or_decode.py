"""vLLM V0's scheduler: a step computes prompts or decodes, prompts first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from paged_core.cache.kv_cache import PrefixHit
from paged_core.checked.calls import asking
from paged_core.engine.contexts import SchedulerContext
from paged_core.engine.planner import Limits, Planner, Room
from paged_core.interfaces.scheduler import Queues, Schedule, Scheduler, StepLimits
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_policies.schedulers.sortable_deque import SortableDeque


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

    @property
    def step_limits(self) -> StepLimits:
        """The most that a step computes."""
        return StepLimits(self.max_num_seqs, self.max_num_batched_tokens)


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
    """True if a running group is preempted for a better waiting one; of use where that may join."""

    def __init__(self, options: PrefillOrDecodeSettings, context: SchedulerContext, /) -> None:
        self._order = context.queue_order
        self._waiting = SortableDeque(context.queue_order)
        self._running: list[SequenceGroup] = []
        self._swapped: deque[SequenceGroup] = deque()
        self._delay = _Delay(options.delay_factor)
        self.planner: PromptPlanner = PromptPlanner(options, context, self._running, self._requeue)
        self._ends_quanta = self.preempts_for_head and self.planner.quanta.exist
        self._swap_in_by_order = options.swap_in_by_order or self._ends_quanta

    @property
    def length_cap(self) -> int:
        return self.planner.max_model_len + 1

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running) + len(self._swapped)

    def queues(self) -> Queues:
        return Queues(tuple(self._running), tuple(self._waiting), tuple(self._swapped))

    def add(self, group: SequenceGroup, /) -> None:
        self._waiting.append(group, self.planner.now)

    def remove(self, group: SequenceGroup, /) -> None:
        if group is self.planner.restoring:
            self.planner.restoring = None
        if group in self._running:
            self._running.remove(group)
        elif group in self._swapped:
            self._swapped.remove(group)
        else:
            self._waiting.remove(group)

    def schedule(self, now: float, /) -> Schedule:
        planner = self.planner
        planner.begin(now)
        if self._swapped and self._swap_in_by_order:
            with asking(self._order):
                self._swapped = deque(sorted(self._swapped, key=lambda g: self._order.key(g, now)))
            self._waiting.sort(now)
        if (self._may_admit() or planner.restoring is not None) and self._is_open():
            self._prefill()
        if not planner.plan.sequences:
            self._make_way_for_head()
            planner.grow(self._running)
            while self._swapped and not self._overtakes() and planner.resume(self._swapped[0]):
                self._swapped.popleft()
        return planner.plan

    def _is_open(self) -> bool:
        """Return whether prompts may join the running batch."""
        return True

    def _may_admit(self) -> bool:
        return not self._swapped or self._overtakes()

    def _overtakes(self) -> bool:
        """Return whether the head of the queue goes before the first swapped group."""
        if not (self._swap_in_by_order and self._waiting and self._swapped):
            return False
        return self._goes_before(self._waiting[0], self._swapped[0])

    def _goes_before(self, first: SequenceGroup, other: SequenceGroup) -> bool:
        key, now = self._order.key, self.planner.now
        with asking(self._order):
            return bool(key(other, now) > key(first, now))

    def _prefill(self) -> None:
        waiting, planner = self._waiting, self.planner
        if planner.restoring is not None:  # one step was too small for all of its sequences
            planner.start(planner.restoring)
        was_idle = not self._running
        while planner.restoring is None and self._delay.passed(planner.now, waiting, was_idle):
            if not (waiting and self._may_admit() and planner.admit(waiting[0])):
                break
            waiting.popleft()
        if planner.plan.admitted:
            self._delay.admitted()

    def _make_way_for_head(self) -> None:
        """Put all in order, and preempt running groups worse than the head of the queue for it."""
        running, waiting, planner = self._running, self._waiting, self.planner
        key, now = self._order.key, planner.now
        with asking(self._order):
            keys = [key(group, now) for group in running]
            if keys != sorted(keys):
                running.sort(key=dict(zip(running, keys, strict=True)).__getitem__)
        if self._ends_quanta:
            spent = planner.spent() if self._swapped or waiting else []
            if spent:
                waiting.sort(now)
                planner.end_quanta(spent, waiting[0] if self._may_admit() else self._swapped[0])
        elif self.preempts_for_head and waiting:
            head = waiting.popleft()
            while running and self._goes_before(head, running[-1]) and not planner.fits(head):
                if running[-1].awaits_step or planner.preemptor.lifetime(running[-1]):
                    break  # it may end with the step in flight; its blocks are reserved to its end
                planner.preempt(running[-1])
            waiting.appendleft(head, now)
        waiting.sort(now)

    def _requeue(self, group: SequenceGroup) -> None:
        if group.status is Status.SWAPPED:
            self._swapped.append(group)
        else:
            self._waiting.appendleft(group, self.planner.now)


class PromptLimits(Limits):
    """Limits by the rules of vLLM's V0 engine; ``budget``: prompt tokens of a step.

    Decoding takes a token of each sequence in any case.
    """

    stops_at_preempted = False

    def __init__(
        self,
        options: PrefillOrDecodeSettings,
        context: SchedulerContext,
        running: list[SequenceGroup],
    ) -> None:
        super().__init__(context, running, num_seqs=options.max_num_seqs)
        self.budget = options.max_num_batched_tokens or max(context.max_model_len, 2048)
        self.spare_blocks = 0 if options.exact_growth else 1

    def refuse(self, group: SequenceGroup) -> str | None:
        width = self.refuse_width(group, self.budget)
        return width or self.preemptor.refuse(group, self.most_blocks)

    @property
    def most_blocks(self) -> int:
        return self.kv_cache.num_blocks - self.kv_cache.watermark_blocks

    def watermark(self, left: Room) -> int:
        return self.kv_cache.watermark_blocks

    def room(self, num_free: int | None = None) -> Room:
        num_tokens = self.budget - len(self.plan.sequences)
        if num_free is None:
            num_free = self.kv_cache.num_free
        return Room(self.seqs_left, num_tokens, num_free, len(self.running))

    def claim(self, group: SequenceGroup) -> tuple[int, int]:
        return len(group.live), 0

    def blocks_to_grow(self, group: SequenceGroup, num_tokens: int) -> int:
        """At most one for each sequence, whether it takes one or not."""
        if not self.spare_blocks or self.preemptor.lifetime(group):
            return self.kv_cache.blocks_to_grow(group)
        return len(group.live)

    def blocks_to_resume(self, group: SequenceGroup, num_tokens: int) -> int:
        return self.kv_cache.distinct_blocks(group) + len(group.live)

    def outgrew_step(self, group: SequenceGroup) -> bool:
        return group.longest > min(self.max_model_len, self.budget)

    def would_admit(self, group: SequenceGroup, left: Room) -> bool:
        needed = self.preemptor.blocks_to_admit(group, self.running) + self.watermark(left)
        return (
            not self.outgrew_step(group)
            and needed <= left.num_blocks
            and self.has_runs(group, left)
        )

    def fits(self, group: SequenceGroup) -> bool:
        """Return whether a group could be admitted into a step that computes nothing else."""
        needed = self.kv_cache.blocks_to_restore(group) + self.kv_cache.watermark_blocks
        return (
            needed <= self.kv_cache.num_free
            and not self.outgrew_step(group)
            and group.num_seqs <= self.seqs_left
        )


class PromptPlanner(Planner):
    """Starts and grows groups by the rules of vLLM's V0 engine."""

    def __init__(
        self,
        options: PrefillOrDecodeSettings,
        context: SchedulerContext,
        running: list[SequenceGroup],
        requeue: Callable[[SequenceGroup], None],
    ) -> None:
        self._rules = PromptLimits(options, context, running)
        super().__init__(context, running, requeue, self._rules)
        self.fits = self._rules.fits
        self.restoring: SequenceGroup | None = None
        """The group some of whose sequences are still to be started again."""
        self._cached_is_free = options.cached_is_free

    def begin(self, now: float) -> None:
        super().begin(now)
        self._prompt_tokens = 0

    # ------------------------------------------------------------------ prompts

    def admit(self, group: SequenceGroup) -> bool:
        fits = self.limits.would_start(group, self.limits.room())
        if fits and self._prompt_tokens + self._cost(group.live[0]) <= self._rules.budget:
            self.limits.joins(group)
            self.running.append(group)
            self.start(group)
            num_cached = sum(sequence.num_scheduled for sequence in group.live)
            self.plan.admitted.append((group, num_cached))
            return True
        reason = None if fits else self._outgrown(group)
        if reason is not None:
            self.give_up(group, reason)
        return reason is not None

    def start(self, group: SequenceGroup) -> None:
        """Compute the prompts of a group's sequences while tokens are left.

        No other group runs until all of its sequences are started, so the blocks that were free
        for it when it was admitted still are.
        """
        for sequence in group.live:
            if sequence.table.blocks:
                continue
            cost, length = self._cost(sequence), sequence.num_tokens
            if self._prompt_tokens + cost > self._rules.budget:
                self.restoring = group
                return
            self._prompt_tokens += cost
            hit = self.kv_cache.lookup(sequence, length)
            skipped = self._num_skipped(hit, length)
            self._begin_sequence(sequence, length - skipped, hit, skipped)
        self.restoring = None

    def _cost(self, sequence: SequenceState) -> int:
        """Tokens of the budget that a prompt takes."""
        length = sequence.num_tokens
        if not self._cached_is_free:
            return length
        return length - self._num_skipped(self.kv_cache.lookup(sequence, length), length)

    def _num_skipped(self, hit: PrefixHit, length: int) -> int:
        """Tokens that need not be computed: those of the last block always are."""
        kv_cache = self.kv_cache
        return min(hit.num_committed, kv_cache.blocks_for(length) - 1) * kv_cache.block_size

    def _outgrown(self, group: SequenceGroup) -> str | None:
        """Say why a waiting group can never be admitted, or return ``None``."""
        if self._rules.outgrew_step(group):
            return (
                f"its {group.longest} tokens are more than one step takes "
                "(scheduler.max_num_batched_tokens)"
            )
        needed = self.kv_cache.blocks_to_restore(group)
        if needed > self._rules.most_blocks:
            return f"it needs {needed} of {self.kv_cache.num_blocks} blocks"
        return None

    def _make_way(self, group: SequenceGroup) -> bool:
        """Preempt among the groups from this one on; not the first one while it is not alone."""
        self.is_short = True
        behind = self.running[self.running.index(group) or 1 :] or [group]
        candidates = [other for other in behind if not other.awaits_step]
        if not candidates:
            return False
        victim = self._victim.choose(tuple(candidates), self.now)
        self.preempt(victim)
        return victim is not group


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
