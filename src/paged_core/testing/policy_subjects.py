"""Groups and caches as policies see them, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from hypothesis import strategies as st

from paged_core.kv_cache import KVCache
from paged_core.registry import Registry
from paged_core.request import Request
from paged_core.sequence import SeqId, SequenceGroup
from paged_core.testing.memory_engine import build_memory_engine
from paged_core.testing.workload import requests


def empty_cache(registry: Registry) -> KVCache:
    """A cache of 64 blocks that holds nothing."""
    return build_memory_engine(registry).kv_cache


def waiting_groups(coming: Sequence[Request]) -> list[SequenceGroup]:
    """Groups of these requests in the order of their coming; none of them has run."""
    numbers = count()
    return [
        SequenceGroup(request, number, SeqId(number))
        for number, request in zip(numbers, coming, strict=False)
    ]


@st.composite
def request_lists(draw: st.DrawFn, max_size: int = 8) -> list[Request]:
    """Requests that differ in all that a policy may look at."""
    size = draw(st.integers(1, max_size))
    return [draw(requests("r", number)) for number in range(size)]
