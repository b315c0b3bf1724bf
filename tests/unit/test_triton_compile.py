"""The Triton kernels are compiled ahead for GPUs: they are accepted, fit, and spill nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from paged_backends.kernels.triton.availability import INTERPRETER

pytest.importorskip("triton")

SHARED_BYTES = {(8, 0): 163 << 10, (8, 6): 99 << 10, (8, 9): 99 << 10, (9, 0): 227 << 10}
"""Of a thread block, by compute capability (CUDA C++ Programming Guide)."""

SPILLED_BYTES = 32
"""Of a thread: a few registers that are read once."""

QWEN3 = {"num_heads": 16, "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
FLOAT8 = {"kv_cache_dtype": "fp8_e4m3"}
EVERYTHING = {"sliding_window": 1500, "soft_cap": 5.0, "alibi_slopes": (0.5,) * 16}


def compiled(*cases: tuple[tuple[int, int], dict[str, Any] | None]) -> list[list[Any]]:
    """Return what each kernel takes, case by case, as ``unit.triton_compile`` says."""
    environment = {name: value for name, value in os.environ.items() if name != INTERPRETER}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    program = [sys.executable, "-m", "unit.triton_compile", json.dumps(cases)]
    ran = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    found: list[list[Any]] = json.loads(ran.stdout)
    return found


def compile_(*layers: tuple[tuple[int, int], dict[str, Any]]) -> None:
    for (capability, changes), found in zip(layers, compiled(*layers), strict=True):
        kernels = {kernel for kernel, *_ in found}
        attention = {"attend_tiles", "attend_splits", "merge_splits"}
        assert kernels == {"write_tokens", "prepare_and_write", *attention}
        for kernel, shared, stack, _ in found:
            place = f"{kernel} for {capability}, {changes}"
            assert shared <= SHARED_BYTES[capability], place
            assert stack <= SPILLED_BYTES, f"{place} spills registers"


def test_kernels_for_a100_and_h200() -> None:
    compile_(((8, 0), QWEN3), ((9, 0), {**QWEN3, **FLOAT8}))


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_BYTES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_kernels_for_every_head_dim(capability: tuple[int, int], head_dim: int) -> None:
    layer = {**QWEN3, "head_dim": head_dim}
    compile_(
        (capability, layer),
        (capability, {**layer, **EVERYTHING}),
        (capability, {**layer, **FLOAT8}),
        (capability, {**layer, **FLOAT8, "dtype": "float16"}),
        (capability, {**layer, "dtype": "float32"}),
    )


@pytest.mark.slow
def test_kernels_for_other_blocks_and_groups() -> None:
    others = [{"block_size": 128}, {"block_size": 5}, {"num_heads": 64, "num_kv_heads": 2}]
    compile_(*(((9, 0), {**QWEN3, **changes}) for changes in others))


@pytest.mark.parametrize("capability", [(9, 0), pytest.param((8, 0), marks=pytest.mark.slow)])
def test_kernels_of_the_runner_and_of_sampling(capability: tuple[int, int]) -> None:
    (found,) = compiled((capability, None))
    kernels = {kernel for kernel, *_ in found}
    assert len(kernels) == 9
    assert {"normalize_rows", "prepare_query_and_key", "gate_rows", "draw_tokens"} <= kernels
