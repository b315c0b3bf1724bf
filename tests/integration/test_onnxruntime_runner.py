"""Runner ``onnxruntime`` on weights: dtypes, steps and memory, and quantised weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf import GGMLQuantizationType
from torch import Tensor

from integration import quantized_checkpoints, tiny_models
from integration.gguf_files import GgufModel
from integration.step_driver import load_runner, prompt_logits, settings
from paged_core import LLM, SamplingParams

pytestmark = pytest.mark.heavy


NUM_TOKENS = 8
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)


def answers(folder: Path, **changes: Any) -> list[list[int]]:
    with LLM(str(folder), **{"runner": "onnxruntime", "num_blocks": 40, **changes}) as llm:
        outputs = llm.generate(tiny_models.PROMPTS, GREEDY)
    return [output.outputs[0].token_ids for output in outputs]


# ---------------------------------------------------------------------- dtypes


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_models.save("llama", tmp_path / "llama")


@pytest.mark.parametrize(
    ("stored", "dtype"), [("Q4_0", "bfloat16"), ("Q6_K", "float32"), ("gptq", "float32")]
)
def test_quantised_checkpoints_are_dequantised(stored: str, dtype: str, tmp_path: Path) -> None:
    """Also an embedding of a GGUF file, which is its head."""
    config = tiny_models.of("Llama", hidden_size=256, intermediate_size=512, vocab_size=80)()
    config.tie_word_embeddings = True
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.requires_grad_(False)
    if stored == "gptq":
        path = quantized_checkpoints.write(model, tmp_path, quantized_checkpoints.Gptq())
    else:
        path = GgufModel(model, GGMLQuantizationType[stored]).write(tmp_path / "model.gguf")
    native = load_runner(settings(path, dtype="float32"), "native", kernels="off")
    own = load_runner(settings(path, dtype=dtype), "onnxruntime")
    found, expected = (prompt_logits(one, tiny_models.PROMPTS[2]) for one in (own, native))
    error = (found - expected).norm() / expected.norm()
    assert error < (1e-5 if dtype == "float32" else 0.1)  # of weights, rounded to 16 bits


def test_it_is_described_as_native_describes_it(llama: Path) -> None:
    chosen = settings(llama, dtype="bfloat16", kv_cache_dtype="fp8_e4m3")
    own, native = load_runner(chosen, "onnxruntime"), load_runner(chosen, "native")
    for name in ("layers", "vocab_size", "max_model_len", "eos_token_ids"):
        assert getattr(own, name) == getattr(native, name)
    size = native.model_size()  # of 16 bits, where the sessions have 32
    assert own.model_size() == replace(size, bytes_per_weight=4)


@torch.inference_mode()
@pytest.mark.parametrize(("name", "dtype"), [("gemma2", "bfloat16"), ("opt", "float16")])
def test_keys_and_values_in_16_bits(name: str, dtype: str, tmp_path: Path) -> None:
    """Logits are close to those in 32 bits, and closer than if all was computed in 16."""
    tiny_models.save(name, tmp_path)
    tokens = torch.tensor(tiny_models.PROMPTS[0])
    seen, logits = [], []

    def attend(_layer: int, query: Tensor, _key: Tensor, value: Tensor) -> Tensor:
        seen.append((query.dtype, value.dtype))
        return query

    for chosen in ("float32", dtype):
        runner = load_runner(settings(tmp_path, dtype=chosen), "onnxruntime")
        hidden = runner.forward(tokens, torch.arange(len(tokens)), attend)
        assert hidden.dtype == torch.float32
        logits.append(runner.logits(hidden))
        for found, best in zip(runner.best_tokens(hidden), logits[-1].max(-1)[::-1], strict=True):
            assert torch.equal(found, best)
    assert seen[-1] == (getattr(torch, dtype),) * 2
    error = (logits[0] - logits[1]).norm() / logits[0].norm()
    assert 0 < error < 0.02


def test_stored_in_16_bits_and_computed_in_32(tmp_path: Path) -> None:
    """Also the embedding and its scale, the head that is the embedding, biases and positions."""
    for name in ("llama, linear rope, tied", "gemma", "gpt2", "opt"):
        folder = tiny_models.save(name, tmp_path / name)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        model.to(torch.bfloat16).save_pretrained(folder)
        expected = tiny_models.generate(folder, tiny_models.PROMPTS, NUM_TOKENS)
        assert answers(folder, dtype="float32") == expected


@torch.inference_mode()
def test_an_embedding_in_16_bits_is_scaled_in_32(tmp_path: Path) -> None:
    """The root of 72, rounded to bfloat16, is 8.5."""
    config = tiny_models.FAMILIES["gemma"]()
    config.hidden_size = 72
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    chosen = settings(tmp_path, dtype="float32")
    tokens, positions = torch.arange(3, 9), torch.arange(6)
    found, expected = (
        runner.forward(tokens, positions, lambda _l, query, _k, _v: query.clone())
        for runner in (load_runner(chosen, "onnxruntime"), load_runner(chosen, "native"))
    )
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("quantization", ["off", "int8"])
def test_a_row_has_the_same_bits_in_every_batch(llama: Path, quantization: str) -> None:
    runner = load_runner(
        settings(llama, deterministic=True), "onnxruntime", quantization=quantization
    )
    tokens, seen = torch.arange(3, 143), []

    def attend(_layer: int, query: Tensor, _key: Tensor, value: Tensor) -> Tensor:
        seen.append(len(value))
        return query.clone()

    @torch.inference_mode()
    def logits(count: int) -> tuple[Tensor, Tensor]:
        """Logits of all tokens together, and of the last one alone."""
        hidden = runner.forward(tokens[:count], torch.arange(count), attend)
        return runner.logits(hidden), runner.logits(hidden[-1:])

    whole, _ = logits(140)
    for count in (1, 2, 3, 16, 127, 129):
        together, alone = logits(count)
        assert torch.equal(together, whole[:count])
        assert torch.equal(alone, whole[count - 1 : count])
        assert seen[-1] == count, "attention sees a row that is not there"


# ---------------------------------------------------------------------- steps and memory


@torch.inference_mode()
def test_steps_of_many_sizes(llama: Path) -> None:
    """Each computes the same, and none overwrites what another returned."""
    runner, native = load_runner(llama, "onnxruntime"), load_runner(llama, "native")
    kept = None
    for count in (3, 5, 40, *range(1, 9), 1, 9, 3):
        tokens, positions = torch.arange(3, 3 + count), torch.arange(count)
        hidden, expected = (
            one.forward(tokens, positions, lambda _l, query, _k, value: query + value.mean())
            for one in (runner, native)
        )
        assert torch.allclose(hidden, expected, atol=1e-4)
        if kept is not None:
            assert torch.equal(*kept)
        kept = (hidden, hidden.clone())


@torch.inference_mode()
def test_attention_may_return_any_layout(llama: Path) -> None:
    runner = load_runner(llama, "onnxruntime")
    tokens, positions = torch.arange(3, 9), torch.arange(6)

    def transposed(_layer: int, query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
        return query.transpose(0, 1).contiguous().transpose(0, 1)

    def padded(_layer: int, query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
        return torch.cat([query, query], dim=1)[:, : query.shape[1]]

    plain = runner.forward(tokens, positions, lambda _l, query, _k, _v: query.clone())
    for attend in (transposed, padded):
        assert torch.equal(runner.forward(tokens, positions, attend), plain)
