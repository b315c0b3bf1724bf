"""The whole engine on attention ``triton``, interpreted: the text is that of ``torch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration import tiny_models
from paged_backends.kernels.triton.availability import is_interpreted
from paged_core import LLM, SamplingParams

pytestmark = pytest.mark.skipif(
    not is_interpreted(),
    reason="there is a GPU, on which tests/gpu/test_triton_attention.py runs the engine",
)

SHARED = list(range(60, 73))
PROMPTS = [list(range(40, 56)), [*SHARED, 5], [*SHARED, 6]]
GREEDY = SamplingParams(max_tokens=5, ignore_eos=True)

CHUNKED = {"num_blocks": 8, "scheduler": {"max_num_batched_tokens": 7}}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "recompute": ("gemma2", CHUNKED),
    "swap": ("gemma2", {**CHUNKED, "preemption": "swap"}),
    "prefix hits": ("llama", {"num_blocks": 60}),
    "in tiles": ("llama", {**CHUNKED, "deterministic": True}),
    "float8": ("llama", {"num_blocks": 60, "kv_cache_dtype": "fp8_e4m3"}),
}
"""A family, and settings; gemma2 has sliding windows and soft caps."""


@pytest.mark.parametrize("way", WAYS)
def test_text_is_that_of_torch(tmp_path: Path, way: str) -> None:
    family, changes = WAYS[way]
    folder = str(tiny_models.save(family, tmp_path))
    settings = {"block_size": 4, "max_model_len": 28, **changes}
    with LLM(folder, attention="torch", **settings) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
    with LLM(folder, attention="triton", **settings) as llm:
        for _ in range(2 if way == "prefix hits" else 1):
            outputs = llm.generate(PROMPTS, GREEDY)
            assert [output.outputs[0].token_ids for output in outputs] == expected
        if settings["num_blocks"] == 8:
            assert llm.engine.metrics.num_preemptions, "the pool was meant to be too small"
        if way == "prefix hits":
            assert [output.num_cached_tokens for output in outputs] == [12, 12, 12]
