"""The runner ``native`` on quantised safetensors: its logits are those of the numbers in there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from integration.quantized_checkpoints import Awq, CompressedTensors, Gptq, Method, write
from integration.step_driver import load_runner, settings
from integration.test_gguf import logits

SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 304,
    "max_position_embeddings": 128,
    "initializer_range": 0.08,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROMPT = [3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 7, 7]

EXACT: dict[str, Method] = {
    "gptq int4": Gptq(),
    "gptq int4, symmetric": Gptq(symmetric=True, group_size=128),
    "gptq int4, second version": Gptq(version=2, group_size=64),
    "gptq int4, one group": Gptq(group_size=-1),
    "gptq int4, large groups": Gptq(group_size=256),
    "gptq int8": Gptq(bits=8),
    "gptq int8, symmetric, second version": Gptq(bits=8, symmetric=True, version=2, group_size=16),
    "awq": Awq(group_size=64),
    "awq, one group": Awq(group_size=-1),
    "compressed int4": CompressedTensors(symmetric=True),
    "compressed int4 with zero points": CompressedTensors(group_size=64),
    "compressed int4, channels": CompressedTensors(group_size=-1),
    "compressed int8, channels": CompressedTensors(bits=8, group_size=-1, symmetric=True),
    "compressed int8 with zero points": CompressedTensors(bits=8),
    "plain int8": CompressedTensors(bits=8, group_size=-1, symmetric=True, format="int-quantized"),
    "plain int8 with zero points": CompressedTensors(bits=8, format="naive-quantized"),
    "plain int4": CompressedTensors(symmetric=True, format="int-quantized"),
    "plain int8, one scale": CompressedTensors(
        bits=8, group_size=-1, symmetric=True, per_tensor=True, format="int-quantized"
    ),
}
AGAIN: dict[str, Method] = {
    "gptq int4, act-order": Gptq(act_order=True),
    "gptq int8, act-order": Gptq(act_order=True, bits=8, group_size=64, symmetric=True),
    "compressed int4, act-order": CompressedTensors(act_order=True),
    "gptq int4, groups that we lack": Gptq(group_size=8),
}
"""Quantised again."""


def make(family: str = "Llama", **options: Any) -> Any:
    """A model of the library with random weights."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(SHAPE | options))
    return (
        transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        .eval()
        .requires_grad_(False)
    )


def check(model: Any, folder: Path, bound: float) -> None:
    """Compare the logits; ``bound`` is that of their mean error, in their deviations.

    Kernels also round the activations that they multiply with quantised weights.
    """
    expected = model(torch.tensor([PROMPT])).logits[0]
    for kernels, most in (("off", bound), ("auto", bound + 0.03)):
        found = logits(load_runner(settings(folder), "native", kernels=kernels), PROMPT)
        assert (found - expected).abs().mean() < most * expected.std(), kernels


@pytest.mark.parametrize("name", list(EXACT))
def test_logits_are_those_of_the_numbers_in_the_file(name: str, tmp_path: Path) -> None:
    model = make()
    check(model, write(model, tmp_path, EXACT[name]), 1e-5)


@pytest.mark.parametrize("name", list(AGAIN))
def test_what_is_quantised_again_is_near(name: str, tmp_path: Path) -> None:
    model = make()
    check(model, write(model, tmp_path, AGAIN[name]), 0.02)
