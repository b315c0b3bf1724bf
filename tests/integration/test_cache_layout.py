"""A backend that owns the layout of its cache, in an engine that swaps and copies blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marks import long
from paged_backends.executors.local import LocalExecutor
from paged_core import LLM, SamplingParams
from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_testing import AttentionConformance
from paged_testing.engines import registry_with
from unit.packed_attention import PACKED, PackedAttention

pytestmark = pytest.mark.heavy


PROMPTS = [[3, 5, 7, 11, 13, 17, 19], [23, 29, 31], [5] * 9, [8, 9, 10, 11, 12]]
SAMPLING = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=10, ignore_eos=True)
SMALL: dict[str, Any] = {
    "runner": "native",
    "block_size": 4,
    "max_model_len": 24,
    "preemption": "swap",
}


@long(
    "test_more_tokens_than_a_dimension_of_a_grid_may_have",
    "test_a_sequence_of_several_thousand_blocks",
    "test_equals_dense_attention_on_long_sequences",
    "test_sequences_may_begin_with_the_same_blocks",
)
class TestPacked(AttentionConformance):
    component = "packed"

    def make_registry(self) -> Registry:
        return registry_with(PACKED)


def build(llama: Path, attention: str, **settings: Any) -> LLM:
    return LLM(
        str(llama),
        registry=registry_with(PACKED),
        attention=attention,
        **{**SMALL, "num_blocks": 20, **settings},
    )


def generate(llm: LLM) -> list[list[list[int]]]:
    """Return the tokens of every request."""
    return [[one.token_ids for one in made.outputs] for made in llm.generate(PROMPTS, SAMPLING)]


def test_generates_the_same_when_blocks_are_swapped_and_copied(llama: Path) -> None:
    with build(llama, "torch", num_blocks=200) as llm:
        expected = generate(llm)
    with build(llama, "packed") as llm:
        tokens = generate(llm)
        executor = llm.engine.executor
        assert isinstance(executor, LocalExecutor)
        assert executor._loaded is not None
        backend = executor._loaded.backend
        assert isinstance(backend, PackedAttention)
        assert min(backend.num_copied.values()) > 0, backend.num_copied
    assert tokens == expected


def test_its_blocks_are_counted_by_its_own_size(llama: Path) -> None:
    block = 2 * (2 * 2 * 16 * 4 * 4 + 24)  # layers; key and value, heads, dimensions, tokens, bytes
    with build(llama, "packed", num_blocks=None, kv_cache_memory=11 * block + 1) as llm:
        assert llm.engine.kv_cache.num_blocks == 11
    with pytest.raises(SettingsError, match="raise kv_cache_memory"):
        build(llama, "packed", num_blocks=None, kv_cache_memory=block - 1)
