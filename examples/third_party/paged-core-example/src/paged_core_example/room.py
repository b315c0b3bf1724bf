"""Who fits into the cache beside those who are in it."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.interfaces.preemption import Preemption
from paged_core.kv_cache import KVCache
from paged_core.sequence import SequenceGroup


class Room:
    """Counts blocks: those that a group needs to start, and those that others lay claim to.

    A group in the round may count on blocks for all the tokens it has, so a prompt that was begun
    can be finished; and on those for its whole life, where the preemption asks for that because
    nobody is ever to give way.
    """

    def __init__(self, kv_cache: KVCache, preemption: Preemption) -> None:
        self._kv = kv_cache
        self._preemption = preemption

    def refuse(self, group: SequenceGroup) -> str | None:
        """Say why there can never be room for a group, whatever else happens."""
        lifetime, there = self._lifetime(group), self._kv.num_blocks
        if lifetime > there:
            return (
                f"it may come to need {lifetime} of {there} blocks, and nobody gives way; ask for "
                "fewer tokens or sequences, or raise num_blocks"
            )
        return None

    def left(self, groups: Sequence[SequenceGroup]) -> int:
        """Free blocks that none of ``groups`` claims; fewer than none if they claim too many."""
        watermark = self._kv.watermark_blocks if groups else 0
        return self._kv.num_free - watermark - sum(map(self._claim, groups))

    def needed(self, group: SequenceGroup) -> int:
        """Blocks that a group which holds none takes, whatever is cached."""
        return self._lifetime(group) or sum(
            self._kv.blocks_to_start(len(sequence.tokens), group.max_length)
            for sequence in group.live
        )

    def needed_beside_cached(self, group: SequenceGroup) -> int:
        """As :meth:`needed`, without those that it would share with others now."""
        if len(group.live) > 1 or self._lifetime(group):
            return self.needed(group)  # a promise counts on nobody staying
        sequence = group.live[0]
        hit = self._kv.lookup(sequence, len(sequence.tokens) - 1)
        return self.needed(group) - (len(hit.blocks) - hit.num_idle)

    def is_there_now(self, group: SequenceGroup, *, beside: int) -> bool:
        """Whether a group can start now, beside so many others."""
        watermark = self._kv.watermark_blocks if beside else 0
        needed = self.needed_beside_cached(group)
        return needed + watermark <= self._kv.num_free and all(map(self._kv.can_start, group.live))

    def fits_again(self, group: SequenceGroup, groups: Sequence[SequenceGroup]) -> bool:
        """Whether a group that was swapped out can come back beside ``groups``."""
        needed = self._kv.distinct_blocks(group) + self._claim(group)
        return min(needed, self._kv.num_blocks) <= self.left(groups)

    def is_too_large(self, group: SequenceGroup) -> bool:
        """Whether a group that holds blocks could not grow even if it were alone."""
        held = self._kv.distinct_blocks(group)
        return held + self._kv.blocks_to_grow(group) > self._kv.num_blocks

    def _claim(self, group: SequenceGroup) -> int:
        """Blocks that a group does not hold and may count on."""
        held = self._kv.distinct_blocks(group)
        if not held:
            return self.needed(group)
        lifetime = self._lifetime(group)
        if lifetime:
            return max(0, lifetime - held)
        return self._kv.blocks_to_grow(group, max(s.num_pending for s in group.live))

    def _lifetime(self, group: SequenceGroup) -> int:
        """Blocks that a group may ever come to hold; 0: nobody asks for them in advance.

        Full blocks of the prompt are shared by its sequences, all others are their own.
        """
        num_tokens = self._preemption.tokens_to_reserve(group)
        if num_tokens is None:
            return 0
        shared = len(group.request.prompt) // self._kv.block_size
        return shared + group.seats * (self._kv.blocks_for(num_tokens) - shared)
