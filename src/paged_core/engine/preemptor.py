"""Preempting groups, resuming them, and what has to be reserved so that none need be preempted."""

from __future__ import annotations

from collections.abc import Iterable

from paged_core.cache.kv_cache import KVCache
from paged_core.errors import OutOfBlocks
from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.interfaces.schedule import Schedule
from paged_core.sequence import SequenceGroup, Status


class Preemptor:
    """Does to whole groups what a scheduler decides, and enters it into the step's plan.

    The scheduler keeps the queues: it moves a group to the queue that the answer names.
    """

    def __init__(self, kv_cache: KVCache, preemption: Preemption) -> None:
        self._kv = kv_cache
        self._preemption = preemption

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
        """Whether :meth:`preempt` would swap a running group: by its mode, if the host has room."""
        return (
            self._preemption.mode(group) is PreemptionMode.SWAP
            and self._kv.distinct_blocks(group) <= self._kv.num_free_host
        )

    def outgrew_cache(self, group: SequenceGroup) -> bool:
        """Whether a group that holds blocks could not grow by a token even if it were alone."""
        held = self._kv.distinct_blocks(group)
        return held + self._kv.blocks_to_grow(group) > self._kv.num_blocks

    # ------------------------------------------------------------------ reserved blocks

    def lifetime(self, group: SequenceGroup) -> int:
        """Blocks reserved for the longest that a group may become; 0: none are.

        Full blocks of the prompt are shared by its sequences, all others are their own.
        """
        num_tokens = self._preemption.tokens_to_reserve(group)
        if num_tokens is None:
            return 0
        shared = len(group.request.prompt) // self._kv.block_size
        return shared + group.num_seqs * (self._kv.blocks_for(num_tokens) - shared)

    def outstanding(self, running: Iterable[SequenceGroup]) -> int:
        """Blocks that are reserved for running groups, which do not hold them yet."""
        total = 0
        for group in running:
            total += max(0, self.lifetime(group) - self._kv.distinct_blocks(group))
        return total

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
