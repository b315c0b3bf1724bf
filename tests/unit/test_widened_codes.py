"""Products of bfloat16 with quantised weights that become bfloat16 in tile registers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from integration.dequantized_models import relative_error
from integration.step_driver import prompt_logits
from integration.step_driver import settings as engine_settings
from paged_backends.kernels.cpu.compiler import SETS, products
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.runner import NativeRunner
from paged_backends.runners.settings import NativeSettings
from paged_core.engine.contexts import RunnerContext
from paged_core.errors import SettingsError
from unit.cpu_kernels import load
from unit.test_cpu_amx import TILES, as_tiles_add
from unit.test_quantized_kernels import few, formats, matrix, rows_of

pytestmark = pytest.mark.heavy


each_set = pytest.mark.parametrize("name", TILES)
EMULATED = TILES[1:]


def rounded(weights: Tensor) -> Tensor:
    """To bfloat16: the nearest, and of two that are as near the one of greater magnitude."""
    bits = weights.float().numpy().view(np.uint32) + np.uint32(0x8000) & np.uint32(0xFFFF0000)
    return torch.from_numpy(bits.view(np.float32)).bfloat16()


@each_set
@few
@given(
    weight_format=formats,
    rows=st.integers(1, 20) | st.sampled_from([31, 32, 33, 95, 200]),
    columns=st.integers(1, 300),
    width=st.integers(1, 100),
    seed=st.integers(0, 99),
)
def test_weights_are_rounded_once_and_added_in_the_order_of_tiles(
    name: str, weight_format: WeightFormat, rows: int, columns: int, width: int, seed: int
) -> None:
    kernels = load(name)
    weight = matrix(weight_format, width, columns, seed=seed)
    x = rows_of(rows, columns, torch.bfloat16, seed)
    expected = as_tiles_add(x, rounded(weight.dequantized()))
    assert torch.equal(kernels.linear(x, kernels.pack_quantized(weight)), expected)


# ------------------------------------------------------------------ in a model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose weights have different numbers of columns, and share the scratch memory."""
    config = {
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64},
        **{"hidden_size": 256, "intermediate_size": 416, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def runner(folder: Path, **options: Any) -> NativeRunner:
    chosen = engine_settings(folder, dtype=options.pop("dtype", "bfloat16"))
    made = NativeRunner(
        NativeSettings(weights="random", quantization="int8", **options),
        RunnerContext(settings=chosen),
    )
    made.load()
    return made


@pytest.mark.parametrize("num_tokens", [3, 70])
def test_a_model_computes_the_same_with_either_arithmetic(folder: Path, num_tokens: int) -> None:
    load(EMULATED[0])
    prompt = [index % 61 for index in range(num_tokens)]
    exact = prompt_logits(runner(folder, kernels="off", dtype="float32"), prompt)
    error = {}
    for chosen in ("widened", "integer"):
        made = runner(folder, kernels=EMULATED[0], quantized_products=chosen)
        assert made.model_size().quantized_products == chosen
        error[chosen] = relative_error(prompt_logits(made, prompt), exact)
    assert error["widened"] < error["integer"] < 0.05


def test_float32_rounds_nothing_unless_asked(folder: Path) -> None:
    load(EMULATED[0])
    prompt, options = [3, 5, 7, 11], {"kernels": EMULATED[0], "dtype": "float32"}
    exact = prompt_logits(runner(folder, kernels="off", dtype="float32"), prompt)
    for chosen, rounds in (("auto", False), ("float", False), ("integer", True)):
        made = runner(folder, quantized_products=chosen, **options)
        assert made.model_size().quantized_products == ("integer" if rounds else None)
        assert (relative_error(prompt_logits(made, prompt), exact) > 1e-4) == rounds
    with structlog.testing.capture_logs() as lines:
        runner(folder, kernels=EMULATED[0], quantized_products="integer")
    assert [line["to"] for line in lines if line["event"] == "activations_rounded"] == ["8 bits"]


def test_auto_widens_where_there_are_tiles() -> None:
    assert {one.name: products(one.name) for one in SETS} == {
        one.name: "widened" if "amx" in one.name else "integer" for one in SETS
    }
    assert {products(name) for name in EMULATED} == {"widened"}


def test_what_cannot_be_is_refused(folder: Path) -> None:
    load("portable")
    with pytest.raises(SettingsError, match="quantized_products: widened needs bfloat16 and AMX"):
        runner(folder, kernels="portable", quantized_products="widened")
    with pytest.raises(SettingsError, match=r"float32 on cpu, .* are integer; set it to auto"):
        runner(folder, kernels=EMULATED[1], quantized_products="widened", dtype="float32")
    with pytest.raises(SettingsError, match="integer needs our kernels for CPUs"):
        runner(folder, kernels="off", quantized_products="integer")
