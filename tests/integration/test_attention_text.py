"""Whole engines on attention components that few can run: their text is that of ``torch``.

Kernels for GPUs are emulated or interpreted, and stand-ins take the place of packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration import tiny_models
from integration.test_engine_on_models import GREEDY, PROMPTS, assert_whole, build
from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import find_compiler
from paged_backends.kernels.triton.availability import is_interpreted
from paged_core import SamplingParams
from unit.attention_packages.install import install

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
PACKAGES = {"fa3": {"block_size": 4, "num_blocks": 11}, "fa2": {"block_size": 256, "num_blocks": 2}}


def cases() -> Iterator[Any]:
    """Component, family, the packages that it needs, settings."""
    emulated = {"name": "cuda", "target": "emulated"}
    missing = isinstance(find_compiler(), CannotCompile)
    compiled = pytest.mark.skipif(missing, reason="there is no C++ compiler")
    cuda = pytest.mark.lane("cuda")
    for family in ("llama", "gemma2"):
        for way, settings in WAYS.items():
            name = f"cuda, {family}, {way}"
            yield pytest.param(emulated, family, (), settings, id=name, marks=(cuda, compiled))
    for provider, pages in PACKAGES.items():
        for preemption in ("recompute", "swap"):
            settings = {"dtype": "bfloat16", "preemption": preemption, **pages}
            settings["scheduler"] = {"max_num_batched_tokens": 9}
            chosen, name = {"name": "flash_attn", "provider": provider}, f"{provider}, {preemption}"
            yield pytest.param(chosen, "llama", (provider,), settings, id=name, marks=cuda)
    triton = (
        pytest.mark.lane("triton"),
        pytest.mark.skipif(
            not is_interpreted(),
            reason="there is a GPU, on which tests/gpu/test_attention.py runs the engine",
        ),
    )
    for way, (family, settings) in INTERPRETED.items():
        yield pytest.param("triton", family, (), settings, id=f"triton, {way}", marks=triton)
    for part, marks in (("torch", ()), ("cpu", compiled)):
        hybrid, name = {"name": "hybrid", "prefill": part, "decode": part}, f"hybrid of {part}"
        yield pytest.param(hybrid, "llama", (), WAYS["recompute"], id=name, marks=marks)


def run(
    folder: Path, *, prompts: Any = PROMPTS, sampling: Any = GREEDY, **settings: Any
) -> tuple[list[list[int]], int, list[int]]:
    """Return the tokens of two rounds, how often a sequence was preempted, and how many tokens of
    each prompt the second found in the cache."""
    with build(folder, **settings) as llm:
        outputs = llm.generate(prompts, sampling) + llm.generate(prompts, sampling)
        assert_whole(llm)
        preempted = llm.get_metrics().num_preemptions
    cached = [output.num_cached_tokens for output in outputs[len(prompts) :]]
    return [output.outputs[0].token_ids for output in outputs], preempted, cached


@pytest.mark.parametrize(("attention", "family", "packages", "settings"), cases())
def test_text_is_that_of_torch(
    attention: Any,
    family: str,
    packages: tuple[str, ...],
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if packages:
        install(monkeypatch, *packages)
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
