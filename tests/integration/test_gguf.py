"""The runner ``native`` on GGUF files: its logits are those of the numbers in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from integration import tiny_models
from integration.gguf_files import K_QUANTS, SIMPLE, GgufModel
from integration.step_driver import load_runner, settings
from paged_core.interfaces.runner import Runner
from paged_core.testing.dense_attention import DenseAttention

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 32,
}
OWN = {
    "llama, llama3 rope, biases": ("Llama", {"rope_parameters": LLAMA3, "attention_bias": True}),
    "gemma3, linear rope, caps": (
        "Gemma3Text",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 7,
            "sliding_window": 8,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma2, another window": (
        "Gemma2",
        {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16},
    ),
    "llama for large blocks": (
        "Llama",
        {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 70},
    ),
}
SAME = ["llama", "llama, linear rope, tied", "mistral", "qwen2", "qwen3", "gemma", "gpt2"]
"""Configurations of tiny_models that a file can describe."""


def make(name: str, kind: Type = Type.F32, **values: Any) -> GgufModel:
    """A model with random weights; those that are small or zero at first are moved."""
    torch.manual_seed(0)
    if name in OWN:
        family, options = OWN[name]
        config = getattr(transformers, f"{family}Config")(**(SHAPE | options))
    else:
        config = tiny_models.NATIVE[name]()
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return GgufModel(model, kind, values)


def logits(runner: Runner, tokens: list[int]) -> torch.Tensor:
    """Return the logits of a prompt, [T, V]."""
    attention = DenseAttention(runner.layers, 1)
    attention.begin([(0, len(tokens))])
    with torch.inference_mode():
        hidden = runner.forward(torch.tensor(tokens), torch.arange(len(tokens)), attention)
        return runner.logits(hidden)


def check(made: GgufModel, path: Path) -> Runner:
    """Write the file, and compare its logits with those of the model of the same numbers."""
    made.write(path)
    runner = load_runner(settings(path), "native")
    tokens = tiny_models.PROMPTS[2]
    with torch.inference_mode():
        expected = made.model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(logits(runner, tokens), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.01
    return runner


@pytest.mark.parametrize("name", [*SAME, *list(OWN)])
def test_logits_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    made = make(name)
    runner = check(made, tmp_path / "model.gguf")
    assert runner.vocab_size == made.config.vocab_size
    assert runner.max_model_len == made.config.max_position_embeddings
    assert runner.eos_token_ids == {2}


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, *SIMPLE], ids=lambda kind: kind.name)
def test_logits_are_those_of_the_numbers_in_the_file(kind: Type, tmp_path: Path) -> None:
    check(make("qwen3", kind), tmp_path / "model.gguf")


@pytest.mark.parametrize("kind", K_QUANTS, ids=lambda kind: kind.name)
def test_blocks_of_256_numbers(kind: Type, tmp_path: Path) -> None:
    check(make("llama for large blocks", kind), tmp_path / "model.gguf")
