"""Options of ``prefill_or_decode``, in traces worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from unit.engines import replayed


def scheduled(settings: dict[str, Any], *requests: dict[str, Any]) -> list[dict[str, int]]:
    """Return what each step computes, by request."""
    return [step["scheduled"] for step in replayed(settings, *requests)]


@pytest.mark.parametrize("cached_is_free", [True, False])
def test_what_is_cached_takes_nothing_from_the_budget(cached_is_free: bool) -> None:
    """Prompts B and C have 12 tokens, of which 8 are cached: both take 8 of 16 tokens, or 24."""
    settings = {
        "num_blocks": 32,
        "block_size": 4,
        "scheduler": {
            "name": "prefill_or_decode",
            "max_num_batched_tokens": 16,
            "cached_is_free": cached_is_free,
        },
    }
    steps = scheduled(
        settings,
        {"id": "A", "prompt": "0:12", "output": 1},
        {"id": "B", "prompt": "0:8 20:24", "output": 1, "step": 1},
        {"id": "C", "prompt": "0:8 30:34", "output": 1, "step": 1},
    )
    together = [{"A": 12}, {"B": 4, "C": 4}]
    assert steps == (together if cached_is_free else [{"A": 12}, {"B": 4}, {"C": 4}])


def test_nano_vllm_caches_blocks_after_the_step() -> None:
    """B starts in A's step and computes all; C, a step later, its last block alone."""
    settings = {"profile": "nano-vllm", "num_blocks": 32, "block_size": 4}
    assert scheduled(
        settings,
        {"id": "A", "prompt": "0:12", "output": 1},
        {"id": "B", "prompt": "0:12", "output": 1},
        {"id": "C", "prompt": "0:12", "output": 1, "step": 1},
    ) == [{"A": 12, "B": 12}, {"C": 4}]


def test_without_chunks_one_that_is_alone_is_cut_where_there_is_a_threshold() -> None:
    """Unlike vLLM V1, under which it would wait until another request comes."""
    options = {"name": "token_budget", "max_num_batched_tokens": 16, "chunked_prefill": False}
    request = {"id": "A", "prompt": 20, "output": 1}
    cut = {**options, "long_prefill_token_threshold": 6}
    assert scheduled({"num_blocks": 16, "scheduler": cut}, request) == [{"A": 6}, {"A": 14}]
    assert scheduled({"num_blocks": 16, "scheduler": options}, request) == [{}]
