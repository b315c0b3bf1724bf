"""Views of vLLM's requests and cache, as components of paged-core know groups and the KV cache.

Fields are read from vLLM's request when they are asked for: nothing is copied, nothing is kept in
step. Everything here works with any object that has the attributes of vLLM's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from paged_core.ids import BlockId, SeqId
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import BlockTable, SequenceGroup, SequenceState, Status


class CacheView:
    """The part of a ``KVCache`` that orders and victims may ask, over vLLM's cache manager."""

    reserves_runs = False

    def __init__(self, manager: Any, block_size: int, *, caches_prefixes: bool) -> None:
        self._manager = manager
        self.block_size = block_size
        self.caches_prefixes = caches_prefixes

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated."""
        return int(self._manager.block_pool.get_num_free_blocks())

    def blocks(self, request_id: str) -> list[BlockId]:
        """Return the blocks that a request holds."""
        return [BlockId(block) for ids in self._manager.get_block_ids(request_id) for block in ids]

    def block_use(self) -> tuple[list[int], set[BlockId]]:
        """Return how often each block is referenced, and which ones the prefix cache finds."""
        blocks = self._manager.block_pool.blocks
        found = {BlockId(block.block_id) for block in blocks if block.block_hash is not None}
        return [block.ref_cnt for block in blocks], found

    def distinct_blocks(self, group: SequenceGroup) -> int:
        """Return how many blocks a group holds."""
        return sum(map(len, self._manager.get_block_ids(group.id)))

    def lookup(self, sequence: SequenceState, num_tokens: int, **_: Any) -> Any:
        """Return what the prefix cache has of a sequence; nothing is taken, and no event sent."""
        inner = sequence.inner  # type: ignore[attr-defined]
        if inner.skip_reading_prefix_cache:
            found = 0
        else:
            find = self._manager.coordinator.find_longest_cache_hit
            found = find(inner.block_hashes, inner.num_tokens - 1)[1]
        count = min(found, num_tokens) // self.block_size
        return SimpleNamespace(blocks=range(count), num_committed=count)


class SequenceView(SequenceState):
    """The only sequence of a vLLM request: several samples are made above its scheduler."""

    __slots__ = ("_cache", "_table", "inner")

    def __init__(self, group: GroupView, inner: Any, cache: CacheView) -> None:
        self.group, self.id, self.index, self.inner = group, SeqId(group.number), 0, inner
        self._cache, self._table, self.last_step = cache, BlockTable(), 0
        self.cumulative_logprob = self.logprobs = self.score = None
        self.finish_reason = self.stop_reason = self.error = None

    @property
    def tokens(self) -> Any:  # type: ignore[override]
        """The known tokens, to be read."""
        return self.inner.all_token_ids

    @property
    def num_unknown(self) -> int:  # type: ignore[override]
        return int(self.inner.num_output_placeholders)

    @property
    def num_scheduled(self) -> int:  # type: ignore[override]
        return int(self.inner.num_computed_tokens)

    @property
    def num_computed(self) -> int:  # type: ignore[override]
        """Tokens whose step has ended; vLLM counts those in flight as computed."""
        return int(self.inner.num_computed_tokens) - getattr(self.inner, "num_in_flight_tokens", 0)

    @property
    def capacity(self) -> int:  # type: ignore[override]
        return len(self._cache.blocks(self.group.id)) * self._cache.block_size

    @property
    def table(self) -> BlockTable:  # type: ignore[override]
        self._table.blocks = self._cache.blocks(self.group.id)
        return self._table


class GroupView(SequenceGroup):
    """A vLLM request."""

    __slots__ = ("_max_model_len", "_priority", "_request", "inner")

    def __init__(self, inner: Any, number: int, cache: CacheView, max_model_len: int) -> None:
        self.inner, self.number, self.id = inner, number, inner.request_id
        self._request: Request | None = None
        self._priority = inner.priority  # vLLM's is changed while a victim is marked
        self._max_model_len, self.waiting_since = max_model_len, inner.arrival_time
        self.forked, self.num_cached, self.num_lost = True, None, 0
        self.admitted_at = self.first_token_at = self.finished_at = None
        self.prompt_logprobs = self.stop_check = None
        self.stop_token_ids = self.eos_token_ids = frozenset()
        self.sequences = [SequenceView(self, inner, cache)]

    @property
    def request(self) -> Request:  # type: ignore[override]
        """The request, made when a component first asks: its prompt is copied, and not checked."""
        if self._request is None:
            inner, extra = self.inner, extra_of(self.inner)
            made = Request(
                id=self.id,
                prompt=(0,),
                sampling=SamplingParams(max_tokens=inner.max_tokens),
                priority=self._priority,
                arrival=inner.arrival_time,
                cache_salt=inner.cache_salt,
                tenant=extra.get("tenant", ""),
                session=getattr(inner, "session_id", None) or "",
                deadline=extra.get("deadline"),
            )
            ids = inner.prompt_token_ids
            prompt = (0,) * inner.num_prompt_tokens if ids is None else tuple(ids)
            object.__setattr__(made, "prompt", prompt)  # vLLM has checked the tokens
            self._request = made
        return self._request

    @property
    def arrival(self) -> float:
        return float(self.inner.arrival_time)

    @property
    def live(self) -> list[SequenceState]:  # type: ignore[override]
        return [] if self.inner.is_finished() else self.sequences

    @property
    def status(self) -> Status:  # type: ignore[override]
        name = self.inner.status.name
        if name == "RUNNING":
            return Status.RUNNING
        return Status.FINISHED if name.startswith("FINISHED") else Status.WAITING

    @property
    def num_preemptions(self) -> int:  # type: ignore[override]
        return int(self.inner.num_preemptions)

    @property
    def max_length(self) -> int:  # type: ignore[override]
        asked = self.inner.num_prompt_tokens + self.inner.max_tokens
        return int(min(self._max_model_len, asked))


def extra_of(inner: Any) -> dict[str, Any]:
    """Return tenant and deadline of a vLLM request, from its ``vllm_xargs``, as far as they fit.

    A deadline is in seconds since 1970, as vLLM's arrival times are.
    """
    sampling = inner.sampling_params
    given: Mapping[str, Any] = (sampling.extra_args if sampling is not None else None) or {}
    found: dict[str, Any] = {}
    if (tenant := given.get("tenant")) is not None:
        found["tenant"] = str(tenant)[:200]
    try:
        deadline = float(given["deadline"])
    except (KeyError, TypeError, ValueError):
        return found
    if math.isfinite(deadline):
        found["deadline"] = deadline
    return found
