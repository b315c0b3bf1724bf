"""The whole engine on real models: what it generates does not depend on how it got there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from integration import tiny_models
from paged_core import LLM, SamplingParams

NUM_TOKENS = 10
FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3", "opt", "gpt2"]
SHARED = list(range(60, 81))
PROMPTS = [*tiny_models.PROMPTS, [*SHARED, 5], [*SHARED, 6], [*SHARED, 5], SHARED]
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)

TRANSFORMERS = {"runner": "transformers", "block_size": 4, "num_blocks": 11}
"""The other runner is tested in two ways that between them do everything."""

WAYS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "block_size 1": {"block_size": 1},
    "block_size 4": {"block_size": 4},
    "block_size 256": {"block_size": 256, "num_blocks": 16},
    "small chunks": {"block_size": 4, "scheduler": {"max_num_batched_tokens": 7}},
    "no prefix cache": {"block_allocator": "uncached"},
    "prefill or decode": {"scheduler": "prefill_or_decode", "block_size": 4},
    "planned ahead": {"async_scheduling": True, "scheduler": {"max_num_batched_tokens": 7}},
    "planned ahead, swap": {
        "async_scheduling": True,
        "block_size": 4,
        "num_blocks": 11,
        "preemption": "swap",
    },
    "recompute": {"block_size": 4, "num_blocks": 11},
    "swap": {"block_size": 4, "num_blocks": 11, "preemption": "swap"},
    "v0 recompute": {
        "block_size": 4,
        "num_blocks": 11,
        "scheduler": "prefill_or_decode",
        "preemption": "recompute",
    },
    "transformers recompute": {**TRANSFORMERS, "scheduler": {"max_num_batched_tokens": 7}},
    "transformers swap": {**TRANSFORMERS, "preemption": "swap"},
    "v0 swap": {"profile": "vllm-v0", "block_size": 4, "num_blocks": 11, "preemption": "swap"},
}
PREEMPTING = ("recompute", "swap", "v0 recompute", "v0 swap")


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


def test_a_prefix_is_shared_in_the_step_that_computes_it(
    family: Path, expected: list[list[int]]
) -> None:
    with build(family, block_size=4) as llm:
        outputs = llm.generate(PROMPTS[4:7], GREEDY)
        assert [output.outputs[0].token_ids for output in outputs] == expected[4:7]
        assert [output.num_cached_tokens for output in outputs] == [0, 20, 20]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@given(
    block_size=st.sampled_from([1, 2, 5, 16]),
    pool=st.sampled_from([46, 60, 200]),
    scheduler=st.sampled_from(["token_budget", "prefill_or_decode"]),
    budget=st.integers(5, 60),
    max_num_seqs=st.integers(1, 9),
    allocator=st.sampled_from(["uncached", "hash_cached"]),
    preemption=st.sampled_from(["recompute", "swap", "auto"]),
    order=st.sampled_from(["fcfs", "priority"]),
    planned_ahead=st.booleans(),
)
@hypothesis_settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_text_does_not_depend_on_the_schedule(
    llama: Path,
    block_size: int,
    pool: int,
    scheduler: str,
    budget: int,
    max_num_seqs: int,
    allocator: str,
    preemption: str,
    order: str,
    planned_ahead: bool,
) -> None:
    expected = tiny_models.generate(llama, PROMPTS, NUM_TOKENS)
    tokens = budget if scheduler == "token_budget" else 60
    with build(
        llama,
        block_size=block_size,
        num_blocks=-(-pool // block_size),
        scheduler={
            "name": scheduler,
            "max_num_batched_tokens": tokens,
            "max_num_seqs": max_num_seqs,
        },
        block_allocator=allocator,
        preemption=preemption,
        queue_order=order,
        async_scheduling=planned_ahead,
    ) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, priority=[n % 3 for n in range(len(PROMPTS))])
        assert [output.outputs[0].token_ids for output in outputs] == expected
        assert_whole(llm)
