"""The whole engine on real models: what it generates does not depend on how it got there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration import tiny_models
from paged_core import LLM, SamplingParams

pytestmark = pytest.mark.heavy

NUM_TOKENS = 10
FAMILIES = ["llama", "gemma3", "gpt2"]
"""Full attention, sliding windows and learned positions: other families are their combinations."""
SHARED = list(range(60, 81))
PROMPTS = [*tiny_models.PROMPTS, [*SHARED, 5], [*SHARED, 6], [*SHARED, 5], SHARED]
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)

TRANSFORMERS = {"runner": "transformers", "block_size": 4, "num_blocks": 11}

WAYS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "block_size 256": {"block_size": 256, "num_blocks": 16},
    "no prefix cache": {"block_size": 1, "block_allocator": "uncached"},
    "planned ahead, swap": {
        "async_scheduling": True,
        "block_size": 4,
        "num_blocks": 11,
        "preemption": "swap",
    },
    "recompute": {"block_size": 4, "num_blocks": 11},
    "swap": {"block_size": 4, "num_blocks": 11, "preemption": "swap"},
    "transformers": {**TRANSFORMERS, "scheduler": {"max_num_batched_tokens": 7}},
    "v0 swap": {"profile": "vllm-v0", "block_size": 4, "num_blocks": 11, "preemption": "swap"},
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def expected(family: Path) -> list[list[int]]:
    return tiny_models.generate(family, PROMPTS, NUM_TOKENS)


def build(folder: Path, **settings: Any) -> LLM:
    return LLM(str(folder), **{"num_blocks": 400, "max_model_len": 44, **settings})


def assert_whole(llm: LLM) -> None:
    kv_cache = llm.engine.kv_cache
    assert kv_cache.num_free == kv_cache.num_blocks
    assert kv_cache.num_free_host == kv_cache.num_host_blocks


@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_equal_those_of_generate(
    family: Path, expected: list[list[int]], way: str
) -> None:
    with build(family, **WAYS[way]) as llm:
        preempted = 0
        for _ in range(2):
            generations = llm.submit(PROMPTS, GREEDY)
            for _ in llm.run(generations):
                pass
            assert [g.output().outputs[0].token_ids for g in generations] == expected
            preempted += sum(g.group.num_preemptions for g in generations)
        cached = [g.output().num_cached_tokens for g in generations]
        assert_whole(llm)
        if way == "recompute":
            assert preempted, "the pool was meant to be too small"
        if way == "defaults":
            assert cached[-1] == cached[-4] == 16, "the second round finds the first one's prompts"
        if way == "no prefix cache":
            assert not any(cached)
