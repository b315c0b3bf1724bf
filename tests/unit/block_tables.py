"""Sequences, groups and caches for tests that drive a KVCache by hand."""

from __future__ import annotations

from itertools import count
from typing import Any

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.contexts import AllocatorContext, EvictorContext
from paged_core.ids import SeqId
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, SequenceState
from unit.engines import REGISTRY

_ids = count()


def make_cache(
    num_blocks: int = 8,
    block_size: int = 4,
    allocator: str = "hash_cached",
    num_host_blocks: int = 0,
    watermark: float = 0.0,
    **options: Any,
) -> KVCache:
    """A cache over an allocator chosen by name."""
    evictor = REGISTRY.get("evictor", "lru")
    component = REGISTRY.get("block_allocator", allocator)
    made = component.load()(
        component.settings(name=allocator, **options),
        AllocatorContext(
            max_model_len=2048,
            num_blocks=num_blocks,
            block_size=block_size,
            evictor=evictor.load()(
                evictor.settings(name="lru"),
                EvictorContext(num_blocks=num_blocks, block_size=block_size, seed=0),
            ),
        ),
    )
    return KVCache(
        made,
        num_blocks=num_blocks,
        block_size=block_size,
        num_host_blocks=num_host_blocks,
        watermark=watermark,
    )


def make_group(prompt: list[int] | int, n: int = 1, **fields: Any) -> SequenceGroup:
    """A waiting group; a number gives a prompt of that many tokens, ``0, 1, 2, ...``."""
    tokens = list(range(prompt)) if isinstance(prompt, int) else prompt
    number = next(_ids)
    sampling = fields.pop("sampling", SamplingParams(n=n))
    request = Request(id=f"r{number}", prompt=tuple(tokens), sampling=sampling, **fields)
    return SequenceGroup(request, number, SeqId(next(_ids)))


def finish_step(cache: KVCache, *sequences: SequenceState) -> Any:
    """As the engine does: everything that these sequences have blocks for is computed."""
    changes = cache.take_changes()
    for sequence in sequences:
        room = len(sequence.table.blocks) * cache.block_size
        sequence.num_scheduled = sequence.num_computed = min(len(sequence.tokens), room)
    return changes


def started(cache: KVCache, prompt: list[int] | int, n: int = 1, **fields: Any) -> SequenceGroup:
    """A group whose prompt is computed."""
    group = make_group(prompt, n, **fields)
    sequence = group.live[0]
    cache.admit(sequence, len(sequence.tokens))
    finish_step(cache, sequence)
    return group


def fork(cache: KVCache, group: SequenceGroup, n: int) -> list[SequenceState]:
    """Fork the first sequence of a group until it has ``n``; give each a token of its own."""
    parent = group.live[0]
    children = [
        SequenceState(SeqId(next(_ids)), group, index, list(parent.tokens)) for index in range(1, n)
    ]
    for child in children:
        cache.fork(parent, child)
    group.live.extend(children)
    group.sequences.extend(children)
    group.forked = True
    for number, sequence in enumerate(group.live):
        sequence.tokens.append(1000 + number)
    return group.live


def plan_unknown(cache: KVCache, sequence: SequenceState, num_tokens: int) -> None:
    """Plan a step over tokens the last of which a step in flight is still drawing."""
    sequence.num_unknown = 1
    cache.reserve(sequence, num_tokens)
    cache.take_changes()
    sequence.num_scheduled += num_tokens


def grow(cache: KVCache, sequence: SequenceState, num_tokens: int = 1) -> None:
    """Plan the pending tokens of a sequence, with so many more appended first."""
    sequence.tokens.extend(2000 + i for i in range(num_tokens - sequence.num_pending))
    cache.reserve(sequence, num_tokens)
