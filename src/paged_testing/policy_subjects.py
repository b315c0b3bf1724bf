"""Groups and caches as policies see them, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from paged_core.errors import OutOfBlocks
from paged_core.ids import SeqId
from paged_core.kv_cache import KVCache
from paged_core.registry import Registry
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, Status
from paged_testing.memory_engine import build_memory_engine
from paged_testing.workload import requests as any_request

_FACTS: Sequence[tuple[int, int, int, float | None, str, int, float]] = (
    # tokens of the prompt, max_tokens, priority, deadline, tenant, n, arrival
    (5, 4, 1, None, "a", 1, 0.0),
    (7, 12, 0, 50.0, "", 2, 1.0),
    (1, 1, 2, 5.0, "b", 1, 2.0),
    (16, 8, 1, None, "a", 1, 3.0),
    (5, 4, 1, 5.0, "a", 3, 4.0),
    (12, 2, 0, None, "b", 1, 5.0),
    (3, 10, 2, 50.0, "", 1, 6.0),
    (5, 4, 1, None, "", 1, 7.0),
)


def written_requests() -> list[Request]:
    """Eight requests that differ in every property a policy may look at; some are equal in most."""
    return [
        Request(
            id=f"r{number}",
            prompt=tuple((number + place) % 2 for place in range(length)),
            sampling=SamplingParams(n=n, max_tokens=max_tokens),
            priority=priority,
            deadline=deadline,
            tenant=tenant,
            arrival=arrival,
        )
        for number, (length, max_tokens, priority, deadline, tenant, n, arrival) in enumerate(
            _FACTS
        )
    ]


WRITTEN_SHARES = (3, 15, 0, 8, 2, 11, 1, 4)
"""For :func:`running_groups`: some have their whole prompt computed, some have just begun."""


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
