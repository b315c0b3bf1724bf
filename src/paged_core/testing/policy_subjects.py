"""Groups and caches as policies see them, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from paged_core.errors import OutOfBlocks
from paged_core.ids import SeqId
from paged_core.kv_cache import KVCache
from paged_core.registry import Registry
from paged_core.request import Request
from paged_core.sequence import SequenceGroup, Status
from paged_core.testing.memory_engine import build_memory_engine
from paged_core.testing.workload import requests as any_request


def empty_cache(registry: Registry) -> KVCache:
    """An empty cache of 64 blocks."""
    return build_memory_engine(registry).kv_cache


def waiting_groups(requests: Sequence[Request]) -> list[SequenceGroup]:
    """Groups of these requests in arrival order; none has run."""
    groups = []
    for number, request in enumerate(requests):
        group = SequenceGroup(request, number, SeqId(number))
        group.max_length = len(request.prompt) + (request.sampling.max_tokens or 64)
        groups.append(group)
    return groups


def running_groups(
    cache: KVCache, requests: Sequence[Request], computed: Sequence[int]
) -> list[SequenceGroup]:
    """Running groups of these requests, partly prefilled, as many as the cache has blocks for.

    Args:
        computed: for each request, a number that determines how much of its prompt is computed.
    """
    groups = []
    for group, share in zip(waiting_groups(requests), computed, strict=False):
        (sequence,) = group.live
        count = 1 + share % len(sequence.tokens)
        try:
            cache.admit(sequence, count)
        except OutOfBlocks:
            break
        sequence.num_scheduled = sequence.num_computed = count
        group.status = Status.RUNNING
        groups.append(group)
    return groups


def shares() -> st.SearchStrategy[list[int]]:
    """Values of ``computed`` for :func:`running_groups`."""
    return st.lists(st.integers(0, 15), min_size=8, max_size=8)


@st.composite
def request_lists(draw: st.DrawFn, max_size: int = 8) -> list[Request]:
    """Requests that differ in every property that a policy may look at."""
    size = draw(st.integers(1, max_size))
    return [draw(any_request("r", number)) for number in range(size)]
