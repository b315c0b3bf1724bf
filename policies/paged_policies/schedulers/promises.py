"""Blocks that running groups do not hold yet but were promised."""

from __future__ import annotations

from collections.abc import Iterable

from paged_core.interfaces.preemption import Preemption
from paged_core.kv_cache import KVCache
from paged_core.sequence import SequenceGroup


class Promises:
    """What a preemption that never preempts asks a scheduler to keep free."""

    def __init__(self, preemption: Preemption, kv_cache: KVCache) -> None:
        self._preemption = preemption
        self._kv = kv_cache

    def lifetime(self, group: SequenceGroup) -> int:
        """Blocks that the group may come to hold; 0: nothing is promised to it.

        Full blocks of the prompt are shared by its sequences, all others are their own.
        """
        num_tokens = self._preemption.tokens_to_reserve(group)
        if num_tokens is None:
            return 0
        shared = len(group.request.prompt) // self._kv.block_size
        return shared + group.seats * (self._kv.blocks_for(num_tokens) - shared)

    def outstanding(self, running: Iterable[SequenceGroup]) -> int:
        """Blocks that ``running`` were promised and do not hold."""
        total = 0
        for group in running:
            total += max(0, self.lifetime(group) - self._kv.distinct_blocks(group))
        return total

    def refuse(self, group: SequenceGroup, num_blocks: int) -> str | None:
        """Say why the group can never be promised what it needs, of ``num_blocks`` at most."""
        lifetime = self.lifetime(group)
        if lifetime > num_blocks:
            return (
                f"it may come to need {lifetime} blocks, {num_blocks} can be given to it, and "
                "nothing is preempted; ask for fewer tokens or sequences, or raise num_blocks"
            )
        return None
