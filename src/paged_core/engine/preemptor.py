"""Preemption of groups for blocks and for quanta, their return, and blocks reserved against it."""

from __future__ import annotations

from collections.abc import Iterable

from paged_core.cache.kv_cache import KVCache
from paged_core.checked.calls import asking
from paged_core.errors import OutOfBlocks
from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.interfaces.queue_order import QueueOrder, SupportsQuantum
from paged_core.interfaces.schedule import Schedule
from paged_core.sequence import SequenceGroup, Status


class Preemptor:
    """Does to whole groups what a scheduler decides, and enters it into the step's plan.

    The scheduler keeps the queues: it moves a group to the queue that the answer names.
    """

    def __init__(self, kv_cache: KVCache, preemption: Preemption) -> None:
        self._kv = kv_cache
        self._preemption = preemption
        asked = getattr(preemption, "inner", preemption)  # it may be guarded
        own = type(asked).tokens_to_reserve
        self.reserves = own is not Preemption.tokens_to_reserve
        """False if the preemption leaves it at the interface's answer: it reserves nothing."""

    # ------------------------------------------------------------------ preempt and resume

    def preempt(self, plan: Schedule, group: SequenceGroup, now: float) -> PreemptionMode:
        """Take the blocks of a running group, by its mode; what was planned of it is withdrawn.

        Returns:
            What was done. ``RECOMPUTE``: it is to wait again, before its equals; also where it
            should be swapped and the host is full. ``SWAP``: it is swapped out until
            :meth:`resume`.
        """
        plan.withdraw(group)
        group.waiting_since = now
        if self._preemption.mode(group) is PreemptionMode.SWAP:
            try:
                self._kv.swap_out(group)
            except OutOfBlocks:
                pass  # the host is full
            else:
                group.status = Status.SWAPPED
                plan.swapped_out.append(group)
                return PreemptionMode.SWAP
        group.num_lost = sum(sequence.num_scheduled for sequence in group.live)
        self._kv.release_group(group)
        group.status = Status.WAITING
        plan.preempted.append(group)
        return PreemptionMode.RECOMPUTE

    def resume(self, plan: Schedule, group: SequenceGroup) -> None:
        """Swap a group in; it runs from now on.

        Raises:
            OutOfBlocks: the device has too few free; nothing has changed.
        """
        self._kv.swap_in(group)
        group.status = Status.RUNNING
        plan.swapped_in.append(group)

    def give_up(self, plan: Schedule, group: SequenceGroup, reason: str) -> None:
        """End a group that can never run (again), whatever it holds; the user is told why."""
        plan.withdraw(group)
        self._kv.release_group(group)
        plan.ignored.append((group, reason))

    def would_swap(self, group: SequenceGroup) -> bool:
        """Return whether :meth:`preempt` would swap a group: by its mode, if the host has room."""
        return (
            self._preemption.mode(group) is PreemptionMode.SWAP
            and self._kv.distinct_blocks(group) <= self._kv.num_free_host
        )

    def outgrew_cache(self, group: SequenceGroup) -> bool:
        """Return whether a group that holds blocks could not grow by a token even alone."""
        held = self._kv.distinct_blocks(group)
        return held + self._kv.blocks_to_grow(group) > self._kv.num_blocks

    # ------------------------------------------------------------------ reserved blocks

    def lifetime(self, group: SequenceGroup) -> int:
        """Blocks reserved for the longest that a group may become; 0: none are.

        Full blocks of the prompt are shared by its sequences, all others are their own.
        """
        num_tokens = self._preemption.tokens_to_reserve(group) if self.reserves else None
        if num_tokens is None:
            return 0
        shared = len(group.request.prompt) // self._kv.block_size
        return shared + group.num_seqs * (self._kv.blocks_for(num_tokens) - shared)

    def outstanding(self, running: Iterable[SequenceGroup]) -> int:
        """Blocks that are reserved for running groups, which do not hold them yet."""
        held = self._kv.distinct_blocks
        return sum(max(0, self.lifetime(group) - held(group)) for group in running)

    def blocks_to_admit(self, group: SequenceGroup, running: Iterable[SequenceGroup]) -> int:
        """Blocks that must be free to admit a waiting group beside ``running``, prefix hits apart.

        Those for all the tokens it has; or, where blocks are reserved, for the longest it may
        become, and those outstanding.
        """
        lifetime = self.lifetime(group)
        return (
            lifetime + self.outstanding(running) if lifetime else self._kv.blocks_to_restore(group)
        )

    def refuse(self, group: SequenceGroup, num_blocks: int) -> str | None:
        """Say why what must be reserved for a group is more than ``num_blocks``, or ``None``."""
        lifetime = self.lifetime(group)
        if lifetime > num_blocks:
            return (
                f"it may come to need {lifetime} blocks, {num_blocks} can be given to it, and "
                "nothing is preempted; ask for fewer tokens or sequences, or raise num_blocks"
            )
        return None


class Quanta:
    """Says which running groups may be preempted since their quantum is over.

    Beside what the order says, a group generates at least one token between its start and a
    preemption for its quantum, or two groups could preempt each other for ever; and a group whose
    blocks are reserved for its whole life is not preempted.
    """

    def __init__(self, order: QueueOrder, preemptor: Preemptor) -> None:
        self._order = order
        self._rule: SupportsQuantum | None = order if isinstance(order, SupportsQuantum) else None
        self.exist = self._rule is not None
        """True if the order has any."""
        self._preemptor = preemptor
        self._marks: dict[str, tuple[float, int]] = {}
        """Per running group: since when it last waited, and its length when it last started."""

    def spent(self, running: Iterable[SequenceGroup], now: float) -> list[SequenceGroup]:
        """Return the groups whose quantum is over; the order is asked once for each.

        Args:
            running: all running groups; to be passed in every step in which others wait.
        """
        rule = self._rule
        if rule is None:
            return []
        found, marks = [], {}
        groups = list(running)
        with asking(rule):
            over = [rule.quantum_over(group, now) for group in groups]
        for group, is_over in zip(groups, over, strict=True):
            mark = self._marks.get(group.id)
            if mark is None or mark[0] != group.waiting_since:
                # no token was generated before the first start, nor since another one
                is_first = group.waiting_since == group.arrival
                length = len(group.request.prompt) if is_first else group.longest
                mark = (group.waiting_since, length)
            marks[group.id] = mark
            if (
                is_over
                and group.longest != mark[1]
                and all(sequence.num_pending == 1 for sequence in group.live)
                and not self._preemptor.lifetime(group)
            ):
                found.append(group)
        self._marks = marks
        return found

    def behind(
        self, first: SequenceGroup, spent: Iterable[SequenceGroup], now: float
    ) -> list[SequenceGroup]:
        """Return those of ``spent`` that come after ``first`` in the order, the last at the end."""
        key = self._order.key
        with asking(self._order):
            own = key(first, now)
            keyed = [(key(group, now), group) for group in spent]
            keyed = sorted((pair for pair in keyed if own < pair[0]), key=lambda pair: pair[0])
        return [group for _, group in keyed]
