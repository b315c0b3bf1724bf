"""Prefixes that stay in the cache until they are released or expire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count

from paged_core.cache.kv_cache import KVCache
from paged_core.errors import RequestError
from paged_core.field_rules import finite
from paged_core.ids import BlockId
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, SequenceState


class PinState(Enum):
    COMPUTING = auto()
    """A request of the pin's id computes it."""
    HELD = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Pin:
    """One prefix: its whole blocks, which requests find as they find any cached prefix."""

    id: str
    """Also of the request that computes it."""
    num_blocks: int
    expires_at: float | None
    """Seconds on the engine's clock; ``None``: it is held until it is released."""
    state: PinState = PinState.COMPUTING
    blocks: list[BlockId] = field(default_factory=list)
    """Blocks that it holds."""
    group: SequenceGroup | None = None
    """The request that computes it."""
    end_reason: str | None = None


class Pins:
    """All pins of an engine that have not ended.

    Their blocks are subtracted from :attr:`KVCache.num_blocks` as soon as a pin is requested; those
    that two pins share are subtracted twice. At least what one request of ``max_model_len`` tokens
    takes is left, so that a request that runs alone can always finish.
    """

    def __init__(self, kv_cache: KVCache, max_model_len: int) -> None:
        self._kv = kv_cache
        self.by_id: dict[str, Pin] = {}
        self._numbers = count()
        # a sequence ends at most one token past max_model_len, and some schedulers decode only if
        # one more block is free
        longest = kv_cache.blocks_for(max_model_len + 1)
        self._left_for_requests = longest + 1 + kv_cache.watermark_blocks

    def open(self, num_tokens: int, ttl: float | None, now: float) -> Pin:
        """Set aside the whole blocks of a prefix of ``num_tokens`` tokens for a new pin.

        Args:
            ttl: seconds after ``now`` at which the pin expires.

        Raises:
            RequestError: it cannot be cached, or too few blocks would be left for requests.
        """
        kv = self._kv
        if not kv.caches_prefixes:
            raise RequestError(
                "a prefix can only be pinned where prefixes are cached; choose block_allocator="
                "hash_cached or another one that caches"
            )
        expires_at = None
        if ttl is not None:
            seconds = finite("ttl", ttl)
            if seconds <= 0:
                raise RequestError(f"ttl must be positive seconds, not {ttl}")
            expires_at = now + seconds
        num_blocks = num_tokens // kv.block_size
        if not num_blocks:
            raise RequestError(
                f"a prefix of {num_tokens} tokens does not fill a block of {kv.block_size}, and "
                "only whole blocks are cached; pin a longer one or lower block_size"
            )
        limit = max(0, kv.num_blocks - self._left_for_requests)
        if num_blocks > limit:
            raise RequestError(
                f"a prefix of {num_tokens} tokens takes {num_blocks} blocks, and {limit} can still "
                f"be pinned: {kv.num_blocks} are not, and {self._left_for_requests} must be left "
                "for a request of max_model_len; release another pin, raise num_blocks or lower "
                "max_model_len"
            )
        pin = Pin(f"pin-{next(self._numbers)}", num_blocks, expires_at)
        self.by_id[pin.id] = pin
        kv.num_pinned += num_blocks
        return pin

    def request(
        self, pin: Pin, tokens: Sequence[int], cache_salt: str | None, now: float
    ) -> Request:
        """Return the request that computes the prefix of ``pin``, which ``tokens`` begin with."""
        return Request(
            id=pin.id,
            prompt=tuple(tokens[: pin.num_blocks * self._kv.block_size]),
            sampling=SamplingParams(max_tokens=1),
            arrival=now,
            cache_salt=cache_salt,
        )

    def hold_or_end(self, sequence: SequenceState) -> None:
        """If a sequence that is about to release its blocks computed a pin, hold them or end it."""
        pin = self.by_id.get(sequence.group.id)
        if pin is None or pin.state is not PinState.COMPUTING:
            return
        reason = sequence.finish_reason
        computed = sequence.num_computed >= pin.num_blocks * self._kv.block_size
        if computed and reason in (FinishReason.STOP, FinishReason.LENGTH):
            pin.blocks = self._kv.hold(sequence, pin.num_blocks)
            pin.state = PinState.HELD
        else:
            self.end(pin, sequence.error or f"not computed: {reason}")

    def check(self, pin: Pin) -> None:
        """Check that a pin that has not ended is one of these.

        Raises:
            RequestError: it is another engine's.
        """
        if pin.state is not PinState.ENDED and self.by_id.get(pin.id) is not pin:
            raise RequestError(f"{pin.id!r} pins a prefix in another engine; release it there")

    def end(self, pin: Pin, reason: str) -> None:
        """Free the blocks of ``pin``; nothing happens if it has ended already."""
        if pin.state is not PinState.ENDED:
            if pin.blocks:
                self._kv.let_go(pin.blocks)
            self._kv.num_pinned -= pin.num_blocks
            pin.blocks, pin.state, pin.end_reason = [], PinState.ENDED, reason
            del self.by_id[pin.id]

    def abandon(self, reason: str) -> None:
        """End all pins; the blocks that they held are not to be freed."""
        for pin in self:
            pin.blocks = []
            self.end(pin, reason)

    def expired(self, now: float) -> list[Pin]:
        """Return the pins whose time to live is over."""
        pins = self.by_id.values()
        return [pin for pin in pins if pin.expires_at is not None and pin.expires_at <= now]

    def __iter__(self) -> Iterator[Pin]:
        return iter(list(self.by_id.values()))

    def __len__(self) -> int:
        return len(self.by_id)
