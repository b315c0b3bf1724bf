"""Layers that an attention component does not serve are refused with a remedy."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from paged_backends.attention import flash_attention, flashinfer_attention
from paged_backends.kernels.nvidia import gpu_problem
from paged_backends.kernels.triton.availability import is_interpreted
from unit.attention_calls import LAYER, layer, make
from unit.attention_packages import install

COMPONENTS: dict[str, str | dict[str, Any]] = {
    **{name: {"name": "flash_attn", "provider": name} for name in ("fa2", "fa3", "fa4")},
    "varlen": {"name": "flash_attn", "provider": "torch"},
    "torch twice": {"name": "hybrid", "prefill": "torch", "decode": "torch"},
}
"""Components with options, by a name for the cases."""
PACKAGES: list[tuple[str, tuple[int, int], dict[str, Any], str]] = [
    ("fa2", (7, 5), {}, "needs compute capability 8.0 or more, and the GPU has 7.5"),
    ("fa3", (8, 0), {}, "runs on compute capability 9.0, and the GPU has 8.0"),
    ("fa3", (10, 0), {}, "and the GPU has 10.0"),
    ("fa4", (12, 0), {}, "compute capability 9.0, 10.x and 11.x, and the GPU has 12.0"),
    ("fa4", (10, 0), {"head_dim": 256}, "multiples of 8 up to 128, not 256"),
    ("varlen", (7, 0), {}, "needs compute capability 8.0 or more"),
    ("flashinfer", (7, 5), {}, "needs compute capability 8.0 or more, and the GPU has 7.5"),
]
"""Component, compute capability, changes of a layer, and what is said."""
NO_SINKS = ("fa2", "fa3", "varlen", "flashinfer")
LAYERS: list[tuple[str, dict[str, Any], str]] = [
    ("fa3", {"dtype": "float32"}, "bfloat16 and float16, and the layers are float32"),
    ("fa2", {"kv_cache_dtype": "fp8_e4m3"}, "no fp8_e4m3 cache; set kv_cache_dtype"),
    ("fa2", {"head_dim": 44}, "multiples of 8 up to 256, not 44"),
    ("fa3", {"head_dim": 264}, "multiples of 8 up to 256, not 264"),
    *((name, {"sinks": (0.1,) * 4}, "sinks; set attention to torch") for name in NO_SINKS),
    ("fa3", {"alibi_slopes": (0.1,) * 4}, "it has no ALiBi"),
    ("fa4", {"alibi_slopes": (0.1,) * 4}, "it has no ALiBi"),
    ("varlen", {"soft_cap": 5.0}, "it has no soft cap"),
    ("fa2", {"num_heads": 3}, "cannot be shared evenly"),
    ("fa3", {"block_size": 128}, "set block_size to 16 or 32, not 128"),
    ("fa4", {"block_size": 64}, "set block_size to 16 or 32, not 64"),
    ("varlen", {"block_size": 128}, "set block_size to 256, not 128"),
    ("flashinfer", {"alibi_slopes": (0.1,) * 4}, "ALiBi with slopes of its own only"),
    ("flashinfer", {"head_dim": 96}, "head dimensions 64, 128, 256, not 96"),
    ("flashinfer", {"dtype": "float32"}, "and the layers are float32"),
    ("flashinfer", {"kv_cache_dtype": "fp8_e4m3"}, "set kv_cache_dtype to auto"),
    ("flashinfer", {"num_heads": 3}, "cannot be shared evenly"),
    ("torch twice", {"num_heads": 3}, "prefill 'torch': 3 query"),
    ("cuda", {}, "it computes on CUDA devices, and the model is on cpu"),
    ("emulated", {"dtype": "float64"}, "it computes in float32 and bfloat16 and float16"),
    ("emulated", {"head_dim": 60}, "multiple of 8, 256 at most, and is 60"),
    ("emulated", {"head_dim": 264}, "multiple of 8, 256 at most, and is 264"),
    ("emulated", {"device": "cuda"}, "it is emulated on CPUs, not on cuda"),
    ("triton", {"device": "cuda:0"}, "unset it"),
    ("triton", {"dtype": "float64"}, "float64"),
    ("triton", {"head_dim": 257}, "256 at most"),
    ("triton", {"num_heads": 3}, "shared evenly"),
    ("cpu", {"device": "cuda:0"}, "cuda:0"),
    ("cpu", {"dtype": "float16"}, "float16"),
    (
        *("cpu", {"kv_cache_dtype": "fp8_e4m3"}),
        "it has no fp8_e4m3 cache; set kv_cache_dtype to auto or int8",
    ),
    (
        *("torch", {"kv_cache_dtype": "int8"}),
        "it has no int8 cache; set kv_cache_dtype to auto or fp8_e4m3",
    ),
]


@pytest.mark.parametrize(
    ("component", "capability", "changes", "words"),
    [*PACKAGES, *((name, (9, 0), changes, words) for name, changes, words in LAYERS)],
)
def test_says_what_it_does_not_serve(
    component: str,
    capability: tuple[int, int],
    changes: dict[str, Any],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if component == "triton" and not is_interpreted():
        pytest.skip("there is a GPU, and Triton interprets nothing")
    install(monkeypatch, "fa2", "fa3", "fa4", "torch", "flashinfer", capability=capability)
    assert words in (make(COMPONENTS.get(component, component)).check(layer(**changes)) or "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_each_says_so_and_imports_no_package() -> None:
    for module, name in ((flash_attention, "flash_attn"), (flashinfer_attention, "flashinfer")):
        assert module.unavailable_reason() == gpu_problem() is not None
        reason = make(name).check(LAYER)
        assert reason == "it computes on NVIDIA GPUs, and the model is on cpu"
    assert not {"flash_attn", "flash_attn_interface"} & set(sys.modules)
    assert make("cuda").check(layer(device="cuda:0")) == gpu_problem()
