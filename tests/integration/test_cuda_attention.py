"""A whole engine on the CUDA kernels, emulated: its text is that of attention ``torch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration import tiny_models
from integration.test_engine_on_models import GREEDY, NUM_TOKENS, PROMPTS, assert_whole, build
from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import find_compiler

EMULATED = {"name": "cuda", "target": "emulated"}

pytestmark = pytest.mark.skipif(
    isinstance(find_compiler(), CannotCompile), reason="there is no C++ compiler"
)

WAYS: dict[str, dict[str, Any]] = {
    "prefix hits": {"block_size": 4},
    "chunks": {"block_size": 5, "scheduler": {"max_num_batched_tokens": 7}},
    "recompute": {"block_size": 4, "num_blocks": 11},
    "swap": {"block_size": 4, "num_blocks": 11, "preemption": "swap"},
}


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def expected(family: Path) -> list[list[int]]:
    return texts(family, attention="torch")[0]


def texts(folder: Path, **settings: Any) -> tuple[list[list[int]], int, list[int]]:
    """Return the tokens of the second round, how often a sequence was preempted, and how many
    tokens of each prompt were found in the cache."""
    preempted = 0
    with build(folder, **settings) as llm:
        for _ in range(2):
            generations = llm.submit(PROMPTS, GREEDY)
            for _ in llm.run(generations):
                pass
            preempted += sum(generation.group.num_preemptions for generation in generations)
        assert_whole(llm)
        outputs = [generation.output() for generation in generations]
    tokens = [output.outputs[0].token_ids for output in outputs]
    return tokens, preempted, [output.num_cached_tokens for output in outputs]


@pytest.mark.parametrize("way", WAYS)
def test_text_is_that_of_torch(family: Path, expected: list[list[int]], way: str) -> None:
    tokens, preempted, cached = texts(family, attention=EMULATED, **WAYS[way])
    assert tokens == expected
    assert {len(line) for line in tokens} == {NUM_TOKENS}
    if way in ("recompute", "swap"):
        assert preempted, "the pool was meant to be too small"
    if way == "prefix hits":
        assert max(cached) >= 20


def test_text_is_that_of_torch_with_a_cache_in_float8(family: Path) -> None:
    tokens, plain = (
        texts(family, attention=attention, kv_cache_dtype="fp8_e4m3", block_size=4)[0]
        for attention in (EMULATED, "torch")
    )
    assert tokens == plain
