"""The whole engine on attention ``triton``, interpreted: the text is that of ``torch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration import tiny_models
from paged_backends.attention.triton_obstacle import is_interpreted
from paged_core import LLM, SamplingParams

pytestmark = pytest.mark.skipif(
    not is_interpreted(),
    reason="there is a GPU, on which tests/gpu/test_triton_attention.py runs the engine",
)

SHARED = list(range(60, 73))
PROMPTS = [list(range(40, 56)), [23, 29, 31], [*SHARED, 5], [*SHARED, 6]]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)

WAYS: dict[str, dict[str, Any]] = {
    "recompute, small chunks": {"num_blocks": 9, "scheduler": {"max_num_batched_tokens": 7}},
    "swap": {"num_blocks": 7, "preemption": "swap"},
    "prefix hits": {"num_blocks": 60},
    "recompute in tiles": {"num_blocks": 9, "deterministic": True},
    "float8": {"num_blocks": 60, "kv_cache_dtype": "fp8_e4m3"},
}


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("way", WAYS)
def test_text_is_that_of_torch(family: Path, way: str) -> None:
    chosen = {"block_size": 4, "max_model_len": 28, **WAYS[way]}
    rounds = 2 if way == "prefix hits" else 1
    with LLM(str(family), attention="torch", **chosen) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
    with LLM(str(family), attention="triton", **chosen) as llm:
        for _ in range(rounds):
            generations = llm.submit(PROMPTS, GREEDY)
            for _ in llm.run(generations):
                pass
            outputs = [generation.output() for generation in generations]
            assert [output.outputs[0].token_ids for output in outputs] == expected
        if chosen["num_blocks"] < 10:
            assert sum(generation.group.num_preemptions for generation in generations)
        if way == "prefix hits":
            assert [output.num_cached_tokens for output in outputs] == [12, 0, 12, 12]
