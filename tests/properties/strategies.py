"""Engines and workloads for properties: every registered policy, pools too small for comfort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from paged_core.registry import Registry
from paged_core.request import Request, SamplingParams

REGISTRY = Registry.discover()
POLICY_SLOTS = ("block_allocator", "evictor", "queue_order", "scheduler", "victim", "preemption")


@dataclass(frozen=True)
class Workload:
    """Requests with the step in which each arrives, and those that are aborted before a step."""

    requests: tuple[tuple[int, Request], ...]
    aborts: tuple[tuple[int, str], ...] = ()


def policies() -> st.SearchStrategy[dict[str, Any]]:
    """Any combination of registered policies, with their default options."""
    return st.fixed_dictionaries(
        {slot: st.sampled_from(sorted(REGISTRY.of(slot))) for slot in POLICY_SLOTS}
    )


@st.composite
def settings(draw: st.DrawFn, max_blocks: int = 24) -> dict[str, Any]:
    """Settings for the ``memory`` executor: any policies, small blocks, a small pool."""
    chosen = draw(policies())
    scheduler: dict[str, Any] = {"name": chosen["scheduler"], "max_num_seqs": draw(st.integers(3, 8))}
    if chosen["scheduler"] == "token_budget":
        scheduler["max_num_batched_tokens"] = draw(st.integers(3, 40))
        scheduler["long_prefill_token_threshold"] = draw(st.sampled_from([0, 0, 2, 5]))
        scheduler["reserve_full_sequence"] = draw(st.booleans())
    if chosen["scheduler"] == "prefill_or_decode":
        scheduler["max_num_batched_tokens"] = draw(st.integers(24, 64))
        scheduler["delay_factor"] = draw(st.sampled_from([0.0, 0.0, 0.5]))
    allocator: dict[str, Any] = {"name": chosen["block_allocator"]}
    if chosen["block_allocator"] == "hash_cached":
        allocator["merge_duplicates"] = draw(st.booleans())
    return {
        **chosen,
        "scheduler": scheduler,
        "block_allocator": allocator,
        "executor": "memory",
        "block_size": draw(st.sampled_from([1, 2, 3, 4, 8])),
        "num_blocks": draw(st.integers(6, max_blocks)),
        "num_host_blocks": draw(st.sampled_from([0, 4, 30])),
        "max_model_len": 64,
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])),
    }


@st.composite
def workloads(draw: st.DrawFn, max_requests: int = 7) -> Workload:
    """A few requests over a tiny alphabet, so that prefixes are often shared."""
    requests = []
    for number in range(draw(st.integers(1, max_requests))):
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=16))
        sampling = SamplingParams(
            n=draw(st.sampled_from([1, 1, 1, 2, 3])),
            temperature=draw(st.sampled_from([0.0, 1.0])),
            max_tokens=draw(st.integers(1, 12)),
        )
        request = Request(
            id=f"r{number}",
            prompt=tuple(prompt),
            sampling=sampling,
            priority=draw(st.integers(0, 2)),
            arrival=float(number),
            cache_salt=draw(st.sampled_from([None, None, "salt"])),
        )
        requests.append((draw(st.integers(0, 8)), request))
    ids = [request.id for _, request in requests]
    aborts = draw(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(ids)), max_size=2))
    return Workload(tuple(requests), tuple(aborts))
