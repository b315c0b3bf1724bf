"""Waiting requests: how many, what is left to compute of them, and what they will look up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from paged_core.cache.kv_cache import KVCache
from paged_core.interfaces.admission import Load
from paged_core.interfaces.evictor import Evictor, SupportsDemand
from paged_core.sequence import SequenceGroup, Status


def uncached_tokens(group: SequenceGroup, kv_cache: KVCache) -> int:
    """Tokens of a group's live sequences that are left to compute.

    Of a group that waits, those that a prefix hit would leave now, and at least one of each
    sequence; nothing is referenced. It costs a look-up of each sequence.
    """
    if group.status is not Status.WAITING:
        return sum(sequence.num_tokens - sequence.num_computed for sequence in group.live)
    return sum(sequence.num_tokens for sequence in group.live) - hit_tokens(group, kv_cache)


def hit_tokens(group: SequenceGroup, kv_cache: KVCache) -> int:
    """Tokens that a prefix hit would skip, if the waiting group were admitted now."""
    if not kv_cache.caches_prefixes:
        return 0
    hits = [kv_cache.lookup(each, each.num_tokens - 1) for each in group.live]
    return sum(len(hit.blocks) for hit in hits) * kv_cache.block_size


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Limits on what may wait. Where nothing waits, any request may."""

    max_requests: int
    max_tokens: int
    """Tokens of prompts."""

    def exceeded(
        self, num_waiting: int, waiting_tokens: int, num_tokens: int
    ) -> Literal["requests", "tokens"] | None:
        """Return the limit that one more request of ``num_tokens`` tokens would exceed, if any."""
        if num_waiting and num_waiting >= self.max_requests:
            return "requests"
        if num_waiting and waiting_tokens + num_tokens > self.max_tokens:
            return "tokens"
        return None

    def reason(self, num_waiting: int, waiting_tokens: int) -> str:
        """Say that so much waits already."""
        return (
            f"{num_waiting} requests with {waiting_tokens} tokens of prompts wait already; at most "
            f"{self.max_requests} with {self.max_tokens} may"
        )


class Demand:
    """Counts the waiting requests, and those that want some content, for an evictor that asks.

    For such an evictor it costs one pass over the blocks of a request when that starts to wait, and
    one when it ceases to.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}
        """Tokens of the prompt, by the request that waits."""
        self.num_tokens = 0
        """Sum of these."""
        self._evictor: SupportsDemand | None = None
        """``None``: it does not ask."""
        self._wanted: dict[str, list[int]] = {}
        """Content keys, by the request that waits."""
        self._counts: Counter[int] = Counter()

    def begin(self, evictor: Evictor | None) -> None:
        """Tell a new evictor from now on, or none; no request waits."""
        self._evictor = evictor if isinstance(evictor, SupportsDemand) else None
        for kept in (self.waiting, self._wanted, self._counts):
            kept.clear()
        self.num_tokens = 0

    def update(self, groups: Iterable[SequenceGroup], kv_cache: KVCache) -> None:
        """Note of each group whether it waits now."""
        for group in groups:
            self.forget(group)
            if group.status is Status.WAITING:
                self.waiting[group.id] = length = len(group.request.prompt)
                self.num_tokens += length
                if self._evictor is not None:
                    self._enter(group, kv_cache)

    def forget(self, group: SequenceGroup) -> None:
        """Note that a group does not wait any more."""
        self.num_tokens -= self.waiting.pop(group.id, 0)
        for key in self._wanted.pop(group.id, ()):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
                assert self._evictor is not None
                self._evictor.wanted(key, False)

    def load(self, num_requests: int, max_num_seqs: int | None, kv_cache: KVCache) -> Load:
        """Return the load of an engine with so many requests."""
        return Load(
            num_waiting=len(self.waiting),
            waiting_tokens=self.num_tokens,
            num_running=num_requests - len(self.waiting),
            max_num_seqs=max_num_seqs,
            free_tokens=kv_cache.num_free * kv_cache.block_size,
        )

    def _enter(self, group: SequenceGroup, kv_cache: KVCache) -> None:
        keys: dict[int, None] = {}
        for sequence in group.live:
            last = sequence.num_tokens - 1  # which is always computed
            kv_cache.lookup(sequence, last)  # which makes its keys
            keys |= dict.fromkeys(map(hash, sequence.table.keys[: last // kv_cache.block_size]))
        self._wanted[group.id] = list(keys)
        for key in keys:
            self._counts[key] += 1
            if self._counts[key] == 1:
                assert self._evictor is not None
                self._evictor.wanted(key, True)
