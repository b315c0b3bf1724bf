"""Whole engines on attention components that few can run: their text is that of ``torch``.

Kernels for GPUs are emulated or interpreted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from emulation.cuda_module import EMULATED_CUDA, unavailable_reason
from integration import tiny_models
from integration.test_engine_on_models import GREEDY, PROMPTS, assert_whole, build
from paged_backends.kernels.triton.availability import is_interpreted
from paged_core import SamplingParams
from paged_testing.engines import registry_with

WAYS: dict[str, dict[str, Any]] = {
    "prefix hits": {"block_size": 4},
    "chunks": {"block_size": 5, "scheduler": {"max_num_batched_tokens": 7}},
    "recompute": {"block_size": 4, "num_blocks": 11},
    "swap": {"block_size": 4, "num_blocks": 11, "preemption": "swap"},
    "float8": {"block_size": 4, "kv_cache_dtype": "fp8_e4m3"},
}
SHARED = list(range(60, 73))
BRIEF: dict[str, Any] = {
    "prompts": [list(range(40, 56)), [*SHARED, 5], [*SHARED, 6]],
    "sampling": SamplingParams(max_tokens=5, ignore_eos=True),
    "block_size": 4,
    "max_model_len": 28,
}
"""The interpreter is slow."""
TIGHT = {**BRIEF, "num_blocks": 8, "scheduler": {"max_num_batched_tokens": 7}}
INTERPRETED: dict[str, tuple[str, dict[str, Any]]] = {
    "recompute": ("gemma2", TIGHT),
    "swap": ("gemma2", {**TIGHT, "preemption": "swap"}),
    "prefix hits": ("llama", BRIEF),
    "in tiles": ("llama", {**TIGHT, "deterministic": True}),
    "float8": ("llama", {**BRIEF, "kv_cache_dtype": "fp8_e4m3"}),
}
"""A family, and settings; gemma2 has sliding windows and soft caps."""
FEW = ("swap", "prefix hits")
"""Ways of `make test-all`: both families, blocks that are moved, shared and cut."""


def cases() -> Iterator[Any]:
    """Component, family, settings."""
    missing = unavailable_reason() is not None
    compiled = pytest.mark.skipif(missing, reason="there is no C++ compiler")
    for family, (way, settings) in zip(cycle(("llama", "gemma2")), WAYS.items(), strict=False):
        marks = [compiled] if way in FEW else [compiled, pytest.mark.long]
        yield case("emulated", family, settings, f"cuda, {family}, {way}", *marks)
    interpreted = pytest.mark.skipif(
        not is_interpreted(),
        reason="there is a GPU, on which tests/gpu/test_attention.py runs the engine",
    )
    for way, (family, settings) in INTERPRETED.items():
        marks = [interpreted] if way in FEW else [interpreted, pytest.mark.long]
        yield case("triton", family, settings, f"triton, {way}", *marks)
    for part in ("torch", "cpu"):
        hybrid = {"name": "hybrid", "prefill": part, "decode": part}
        yield case(hybrid, "llama", WAYS["recompute"], f"hybrid of {part}", compiled)


def case(attention: Any, family: str, settings: Any, name: str, *marks: Any) -> Any:
    return pytest.param(attention, family, settings, id=name, marks=marks)


def run(
    folder: Path, *, prompts: Any = PROMPTS, sampling: Any = GREEDY, **settings: Any
) -> tuple[list[list[int]], int, list[int]]:
    """Return the tokens of two rounds, how often a sequence was preempted, and how many tokens of
    each prompt the second found in the cache."""
    with build(folder, registry=registry_with(EMULATED_CUDA), **settings) as llm:
        outputs = llm.generate(prompts, sampling) + llm.generate(prompts, sampling)
        assert_whole(llm)
        preempted = llm.get_metrics().num_preemptions
    cached = [output.num_cached_tokens for output in outputs[len(prompts) :]]
    return [output.outputs[0].token_ids for output in outputs], preempted, cached


@pytest.mark.heavy
@pytest.mark.parametrize(("attention", "family", "settings"), cases())
def test_text_is_that_of_torch(
    attention: Any, family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = tiny_models.save(family, tmp_path)
    expected, _, _ = run(folder, attention="torch", **settings)
    tokens, preempted, cached = run(folder, attention=attention, **settings)
    assert tokens == expected
    count = settings.get("sampling", GREEDY).max_tokens
    assert {len(line) for line in tokens} == {count}
    if settings.get("num_blocks", 400) in (8, 11):
        assert preempted, "the pool was meant to be too small"
    elif settings["block_size"] == 4:
        assert max(cached) >= (12 if "prompts" in settings else 20)
