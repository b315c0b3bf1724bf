"""The planner of a scheduler: carries out its decisions, and enters each into the step's plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import length_hint
from typing import Any

from paged_core.cache.kv_cache import PrefixHit
from paged_core.checked.calls import asking
from paged_core.engine.contexts import SchedulerContext
from paged_core.engine.limits import Limits, Room
from paged_core.engine.preemptor import Quanta
from paged_core.errors import OutOfBlocks, PluginError
from paged_core.interfaces.scheduler import Schedule
from paged_core.sequence import SequenceGroup, SequenceState, Status

__all__ = ["Limits", "Planner", "Room"]


class Planner:
    """Plans the steps of a scheduler, which says only who is next and how much.

    A step is :meth:`begin`, then :meth:`grow` for running groups, :meth:`resume` and :meth:`admit`
    for one group after the other, and :attr:`plan`. The planner reserves blocks, keeps within the
    tokens and sequences of a step, treats the sequences of a group as one, preempts when blocks
    are short, and gives up what can never run again.

    It owns no queue. It appends to ``running`` what it admits and resumes, and takes out what it
    preempts and gives up; a preempted group is handed to ``requeue`` at once, for whichever queue
    its status names: ``WAITING``, or ``SWAPPED``. It also has ``limits``, ``running``, ``now``,
    ``plan``, ``kv_cache``, ``preemptor``, and ``quanta``, which ``exist`` if the order has any.

    Args:
        running: the scheduler's running groups, in the order in which they were admitted.
        requeue: puts a preempted group into a queue, ahead of its equals.
        limits: answers what a step has room for; ``None``: those of ``options``.
        options: of :class:`~paged_core.engine.limits.Limits`.
    """

    def __init__(
        self,
        context: SchedulerContext,
        running: list[SequenceGroup],
        requeue: Callable[[SequenceGroup], None],
        limits: Limits | None = None,
        **options: Any,
    ) -> None:
        self.limits = limits or Limits(context, running, **options)
        self.running = running
        self.kv_cache = context.kv_cache
        self.preemptor = context.preemptor
        self.quanta = Quanta(context.queue_order, context.preemptor)
        self.num_seqs, self.max_model_len = self.limits.num_seqs, self.limits.max_model_len
        self._order = context.queue_order
        self._victim = context.victim
        self._requeue = requeue
        Planner.begin(self, 0.0)  # not what overrides it: that has not been made yet

    # ------------------------------------------------------------------ one step

    def begin(self, now: float) -> None:
        """Start the plan of a step at ``now``."""
        self.now = now
        """Seconds on the engine's clock."""
        self.plan = Schedule()
        """The step so far."""
        self.limits.begin(self.plan)
        self.is_short = False
        """True if blocks were short in this step, so that what runs gets those that are freed."""
        self._yielded: set[SequenceGroup] = set()
        """Groups that were preempted in this step since their quantum was over."""
        self._shares = False
        """True if a group was admitted that shares blocks which this step is to fill."""

    def refuse(self, group: SequenceGroup) -> str | None:
        """Say why a group could never run even alone, or return ``None``."""
        return self.limits.refuse(group)

    @property
    def is_full(self) -> bool:
        """True if nothing more can start: no tokens or sequences are left, or blocks were short."""
        return self.is_short or self.limits.tokens_left <= 0 or self.limits.seqs_left <= 0

    def grow(self, groups: Iterable[SequenceGroup]) -> None:
        """Compute more of running groups, in this order, while tokens are left.

        A sequence that decodes takes a token, a prompt as many as are left. When blocks are short,
        victims are preempted, in the end the group itself. Passed by are groups that no longer run,
        that are in the batch already, or that wait for a step in flight.
        """
        batch = {sequence.group for sequence in self.plan.sequences}
        rest = iter([group for group in groups if group not in batch] if batch else tuple(groups))
        limits = self.limits
        while limits.tokens_left > 0 and length_hint(rest):
            group = self._decode(rest)
            if group is not None and not self._grow_group(group):
                break

    def resume(self, group: SequenceGroup) -> bool:
        """Swap a group in, and compute more of it, if it may start in this step.

        Returns:
            Whether it leaves the queue: it runs, or it has outgrown the cache and is given up.
        """
        if self.is_short or group in self._yielded or self.limits.tokens_left <= 0:
            return False
        kv_cache, live = self.kv_cache, group.live
        count = self.limits.count_to_resume(group, self.limits.tokens_left)
        needed = self.limits.blocks_to_resume(group, count)
        if needed > self.limits.most_blocks:
            self.give_up(group, f"it needs {needed} of {kv_cache.num_blocks} blocks")
            return True
        if not self.limits.would_start(group, self.limits.room()):
            return False
        self.preemptor.resume(self.plan, group)
        self.limits.joins(group)
        self.running.append(group)
        pending = [sequence.num_pending for sequence in live]
        is_behind = not live[0].table.blocks or (len(live) > 1 and max(pending) > 1)
        if all(pending) and not is_behind:  # else it waits for a step in flight, or for the next
            for sequence in live:
                kv_cache.reserve(sequence, count)
                self._add(sequence, count)
        return True

    def admit(self, group: SequenceGroup) -> bool:
        """Compute the first tokens of a waiting group, if it may start in this step.

        Returns:
            Whether it leaves the queue: it runs; or it was preempted before, has outgrown the cache
            or the step, and is given up.
        """
        if self.is_full or group in self.plan.preempted or group.num_seqs > self.limits.seqs_left:
            return False
        kv_cache, first, cached = self.kv_cache, group.live[0], None
        if len(group.live) > 1:
            cached = self._restore(group)
        else:
            hit = kv_cache.lookup(first, first.num_tokens - 1)
            count = self.limits.first_chunk(first, hit, self.limits.room(hit.num_free))
            if count is not None and hit.has_run:
                cached = len(hit.blocks) * kv_cache.block_size
                self._begin_sequence(first, count, hit, cached)
        if cached is None:
            if not self.limits.never_fits(group):
                return False
            self.give_up(group, "it has outgrown the cache or the step")
            return True
        self.limits.joins(group)
        self.running.append(group)
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
                f"{group} was preempted after others were admitted, which may share what it was to "
                "compute in this step; preempt before admitting"
            )
        self.running.remove(group)
        num_planned = sum(self.plan.num_tokens)
        self.preemptor.preempt(self.plan, group, self.now)
        self.limits.tokens_left += num_planned - sum(self.plan.num_tokens)
        self.limits.leaves()
        self._requeue(group)

    def preempt_for(self, group: SequenceGroup, num_tokens: int = 1) -> bool:
        """Preempt victims until each sequence of a running group can grow by ``num_tokens``.

        Returns:
            Whether it can. If not, it was preempted or given up itself; or it waits for the next
            step, since groups were admitted that may rely on the batch as it is, or since all that
            could give way wait for a step in flight.
        """
        while self.limits.blocks_to_grow(group, num_tokens) > self.kv_cache.num_free:
            if self._shares or not self._make_way(group):
                return False
        return True

    def _make_way(self, group: SequenceGroup) -> bool:
        """Preempt one victim so that ``group`` can grow; whether it may do so in this step.

        The first running group in the order is no candidate while it is not alone, so that it ends
        in any case. If it is alone and fills the cache, it is given up. No candidate is what waits
        for a step in flight, with which it may end: if there is no other, ``group`` waits, too.
        """
        with asking(self._order):
            ranked = sorted(self.running, key=lambda other: self._order.key(other, self.now))
        candidates = [other for other in ranked[1:] or ranked if not other.awaits_step]
        if not candidates:
            self.is_short = True
            return False
        victim = self._victim.choose(tuple(candidates), self.now)
        if victim is group and len(ranked) == 1 and self.preemptor.outgrew_cache(group):
            self.give_up(group, "it is alone and fills the whole cache")
        else:
            self.preempt(victim)
            self.is_short = True
        return victim is not group

    def give_up(self, group: SequenceGroup, reason: str) -> None:
        """End a group that can never run (again); the user is told why."""
        if group in self.running:
            self.running.remove(group)
            self.limits.leaves()
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
        behind = [
            g for g in self.quanta.behind(first, spent, self.now) if self.limits.could_return(g)
        ]
        if not behind:
            return
        limits = self.limits
        claims = [limits.claim(group) for group in self.running]
        left = limits.room() + Room(0, -sum(n for n, _ in claims), -sum(n for _, n in claims), 0)
        chosen: list[SequenceGroup] = []
        while not self.limits.would_start(first, left):
            if not behind:
                return
            group = behind.pop()
            tokens, blocks = self.limits.claim(group)
            blocks += self.kv_cache.distinct_blocks(group)
            left += Room(group.num_seqs, tokens, blocks, -1)
            chosen.append(group)
        for group in chosen:
            self.preempt(group)
        self._yielded.update(chosen)

    # ------------------------------------------------------------------ growing

    def _decode(self, rest: Iterator[SequenceGroup]) -> SequenceGroup | None:
        """Add groups that decode one sequence to the batch, up to one that takes more than that.

        A flat loop, without a call for a sequence unless it needs a block.

        Returns:
            That one, which is not in the batch; ``None``: no group or no token is left.
        """
        limits, kv_cache = self.limits, self.kv_cache
        spare = limits.spare_blocks
        if spare and kv_cache.num_free < spare:
            return next(rest)
        sequences, other = self.plan.sequences, None
        fits = limits.tokens_left >= length_hint(rest)  # each takes a token
        for group in rest if fits else islice(rest, limits.tokens_left):
            live = group.live
            if len(live) == 1:
                sequence = live[0]
                start = sequence.num_scheduled
                if len(sequence.tokens) - start + sequence.num_unknown == 1:
                    if start + 1 < sequence.capacity:
                        sequences.append(sequence)
                        continue
                    if self._reserve(sequence):
                        sequences.append(sequence)
                        if spare and kv_cache.num_free < spare:
                            break
                        continue
            other = group
            break
        num_tokens = self.plan.num_tokens
        num_decoding = len(sequences) - len(num_tokens)
        num_tokens += [1] * num_decoding
        limits.tokens_left -= num_decoding
        return other

    def _reserve(self, sequence: SequenceState) -> bool:
        """Reserve a token's block for the only sequence of a group; whether that could be done."""
        if not sequence.table.blocks:
            return False  # it does not run, or the others ended before it was started again
        try:
            self.kv_cache.reserve(sequence, 1)
        except OutOfBlocks:
            return False
        return True

    def _grow_group(self, group: SequenceGroup) -> bool:
        """Grow any group, preempting if blocks are short; whether the step goes on to the next."""
        live = group.live
        pending = [sequence.num_pending for sequence in live]
        if group.status is not Status.RUNNING or not all(pending):
            return True
        if (len(live) > 1 and max(pending) > 1) or not live[0].table.blocks:
            return self._catch_up(group) or not self.limits.stops_at_preempted
        count = self.limits.take(pending[0]) if len(live) == 1 else 1
        if len(live) * count > self.limits.tokens_left:
            return False
        if not self.preempt_for(group, count):
            return not self.limits.stops_at_preempted
        for sequence in live:
            if sequence.num_scheduled + count >= sequence.capacity:
                self.kv_cache.reserve(sequence, count)
            self._add(sequence, count)
        return True

    def _catch_up(self, group: SequenceGroup) -> bool:
        """Compute more of a group that is recomputed, each sequence as a prompt of its own.

        Returns:
            Whether it still runs, and need not wait for the next step.
        """
        for sequence in [sequence for sequence in group.live if sequence.num_pending > 1]:
            before = self.limits.tokens_left
            while True:
                try:
                    self._compute_more(sequence)
                except OutOfBlocks:
                    if self._shares or not self._make_way(group):
                        return False
                else:
                    break
            if before - self.limits.tokens_left < sequence.num_pending:
                break  # the next one may share what this one has yet to compute
        return True

    def _compute_more(self, sequence: SequenceState) -> None:
        """Compute a chunk of a sequence of a forked group, which may hold no blocks yet.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        if not sequence.table.blocks:  # what this step computes may yet be withdrawn: no sharing
            self._start_again(sequence, committed=True)
            return
        count = self.limits.take(sequence.num_pending)
        if count:
            self.kv_cache.reserve(sequence, count)
            self._add(sequence, count)

    # ------------------------------------------------------------------ starting

    def _restore(self, group: SequenceGroup) -> int | None:
        """Start a forked group again, each sequence as its own prompt, if it fits.

        One after the other, so that each shares what it has in common with those before it.
        """
        if not self.limits.would_admit(group, self.limits.room()):
            return None
        total = 0
        for sequence in group.live:
            before = self.limits.tokens_left
            try:
                cached = self._start_again(sequence, committed=False)
            except OutOfBlocks:
                break  # it catches up when blocks are free
            total += cached
            if before - self.limits.tokens_left < sequence.num_tokens - cached:
                break
        return total

    def _start_again(self, sequence: SequenceState, *, committed: bool) -> int:
        """Give a sequence of a forked group its first blocks; how many tokens were cached.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        length = sequence.num_tokens
        hit = self.kv_cache.lookup(sequence, length - 1, committed=committed)
        cached = len(hit.blocks) * self.kv_cache.block_size
        count = self.limits.take(length - cached)
        if not count:
            return 0
        self._begin_sequence(sequence, count, hit, cached)
        return cached

    def _begin_sequence(
        self, sequence: SequenceState, count: int, hit: PrefixHit, num_skipped: int
    ) -> None:
        """Give a sequence its first blocks, and compute ``count`` tokens after those skipped.

        Raises:
            OutOfBlocks: too few are free; nothing has changed.
        """
        self.kv_cache.admit(sequence, count, hit, num_skipped)
        self._shares |= len(hit.blocks) > hit.num_committed
        self._add(sequence, count)

    def _add(self, sequence: SequenceState, num_tokens: int) -> None:
        """Add a sequence to the batch; its blocks are reserved."""
        self.plan.add(sequence, num_tokens)
        self.limits.tokens_left -= num_tokens
