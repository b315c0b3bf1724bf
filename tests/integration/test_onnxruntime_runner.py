"""The runner ``onnxruntime`` says what the library itself generates, for all that it covers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from integration import tiny_models
from integration.step_driver import (
    StepDriver,
    load_runner,
    make_executor,
    run_at_random,
    settings,
)
from paged_backends.runners.native.runner import NativeRunner
from paged_backends.runners.onnx.runner import OnnxRuntimeRunner
from paged_backends.runners.settings import OnnxRuntimeSettings
from paged_core import LLM, SamplingParams
from paged_core.engine.contexts import RunnerContext
from paged_core.errors import CheckpointError, UnsupportedModel

NUM_TOKENS = 8
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module", params=list(tiny_models.NATIVE))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    return tiny_models.generate(model, tiny_models.PROMPTS, NUM_TOKENS)


def load(chosen: Any, **options: Any) -> OnnxRuntimeRunner:
    runner = OnnxRuntimeRunner(OnnxRuntimeSettings(**options), RunnerContext(settings=chosen))
    runner.load()
    return runner


def answers(folder: Path, **changes: Any) -> list[list[int]]:
    with LLM(str(folder), **{"runner": "onnxruntime", "num_blocks": 40, **changes}) as llm:
        outputs = llm.generate(tiny_models.PROMPTS, GREEDY)
    return [output.outputs[0].token_ids for output in outputs]


def test_greedy_tokens_equal_those_of_generate(model: Path, expected: list[list[int]]) -> None:
    """In chunks and batches, and swapped out and in, at random."""
    chosen = settings(model, block_size=4, num_blocks=40)
    executor = make_executor(chosen, needs_host_blocks=True, runner=load(chosen))
    driver = StepDriver(executor, 4)
    assert run_at_random(driver, tiny_models.PROMPTS, NUM_TOKENS) == expected


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("name", ["llama", "opt"])
def test_an_engine_that_prefills_in_chunks_and_preempts(
    name: str, preemption: str, tmp_path: Path
) -> None:
    tiny_models.save(name, tmp_path)
    expected = tiny_models.generate(tmp_path, tiny_models.PROMPTS, NUM_TOKENS)
    options: dict[str, Any] = {
        "runner": "onnxruntime",
        "preemption": preemption,
        "num_blocks": 9,
        "block_size": 4,
        "scheduler": {"name": "token_budget", "max_num_batched_tokens": 8},
    }
    with LLM(str(tmp_path), **options) as llm:
        generations = llm.submit(tiny_models.PROMPTS, GREEDY)
        for _ in llm.run(generations):
            pass
        assert [g.output().outputs[0].token_ids for g in generations] == expected
        assert llm.engine.metrics.num_preemptions > 0


def test_a_prompt_that_is_cached_is_not_computed_again(llama: Path) -> None:
    prompts = [[*range(3, 40), last] for last in (50, 51)]
    expected = tiny_models.generate(llama, prompts, NUM_TOKENS)
    with LLM(str(llama), runner="onnxruntime", num_blocks=40, block_size=4) as llm:
        for prompt, tokens, cached in zip(prompts, expected, (0, 36), strict=True):
            (output,) = llm.generate([prompt], GREEDY)
            assert output.outputs[0].token_ids == tokens
            assert output.num_cached_tokens == cached


# ---------------------------------------------------------------------- dtypes


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_models.save("llama", tmp_path / "llama")


def test_it_is_described_as_native_describes_it(llama: Path) -> None:
    chosen = settings(llama, dtype="bfloat16", kv_cache_dtype="fp8_e4m3")
    own, native = load(chosen), load_runner(chosen, "native")
    assert isinstance(native, NativeRunner)
    for name in ("layers", "vocab_size", "max_model_len", "eos_token_ids"):
        assert getattr(own, name) == getattr(native, name)
    size = native.model_size()  # of 16 bits, where the sessions have 32
    assert own.model_size() == replace(size, bytes_per_weight=4)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "opt"])
def test_keys_and_values_in_16_bits(name: str, dtype: str, tmp_path: Path) -> None:
    """Logits are close to those in 32 bits, and closer than if all was computed in 16."""
    tiny_models.save(name, tmp_path)
    tokens = torch.tensor(tiny_models.PROMPTS[0])
    seen, logits = [], []

    def attend(_layer: int, query: Tensor, _key: Tensor, value: Tensor) -> Tensor:
        seen.append((query.dtype, value.dtype))
        return query

    for chosen in ("float32", dtype):
        runner = load(settings(tmp_path, dtype=chosen))
        hidden = runner.forward(tokens, torch.arange(len(tokens)), attend)
        assert hidden.dtype == torch.float32
        logits.append(runner.logits(hidden))
        assert torch.equal(runner.best_tokens(hidden)[0], logits[-1].argmax(-1))
    assert seen[-1] == (getattr(torch, dtype),) * 2
    error = (logits[0] - logits[1]).norm() / logits[0].norm()
    assert 0 < error < 0.02


def test_a_cache_in_float8_gives_what_it_gives_with_native(llama: Path) -> None:
    changes = {"kv_cache_dtype": "fp8_e4m3"}
    assert answers(llama, **changes) == answers(llama, runner="native", **changes)


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
        for runner in (load(chosen), load_runner(chosen, "native"))
    )
    assert torch.allclose(found, expected, atol=1e-4)


def test_deterministic_tokens_do_not_depend_on_the_batch(llama: Path) -> None:
    ways: list[dict[str, int]] = [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 3, "max_num_batched_tokens": 5},  # prompts come in chunks
    ]
    changes = {"dtype": "bfloat16", "deterministic": True}
    found = [answers(llama, scheduler=way, **changes) for way in ways]
    assert all(tokens == found[0] for tokens in found)


@pytest.mark.parametrize("quantization", ["off", "int8", "int4"])
def test_a_row_has_the_same_bits_in_every_batch(llama: Path, quantization: str) -> None:
    runner = load(settings(llama, deterministic=True), quantization=quantization)
    tokens, seen = torch.arange(3, 143), []

    def attend(_layer: int, query: Tensor, _key: Tensor, value: Tensor) -> Tensor:
        seen.append(len(value))
        return query.clone()

    @torch.inference_mode()
    def logits(count: int) -> tuple[Tensor, Tensor]:
        """Of all tokens together, and of the last one alone."""
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
    """Larger ones than any before, and sizes whose bindings were dropped, compute the same."""
    runner, native = load(settings(llama)), load_runner(settings(llama), "native")
    model, kept = runner._model, None
    for count in (3, 5, 40, *range(1, 9), 1, 9, 3):
        tokens, positions = torch.arange(3, 3 + count), torch.arange(count)
        hidden, expected = (
            one.forward(tokens, positions, lambda _l, query, _k, value: query + value.mean())
            for one in (runner, native)
        )
        assert torch.allclose(hidden, expected, atol=1e-4)
        if kept is not None:
            assert torch.equal(*kept), "a step overwrites what the one before returned"
        kept = (hidden, hidden.clone())
        places = {step.buffers["query"].data_ptr() for step in model._steps.values()}
        assert len(places) == 1, "steps of all sizes share their memory"
    assert list(model._steps) == [4, 5, 6, 7, 8, 1, 9, 3], "the last eight are kept"


@torch.inference_mode()
def test_attention_may_return_any_layout(llama: Path) -> None:
    runner = load(settings(llama))
    tokens, positions = torch.arange(3, 9), torch.arange(6)

    def transposed(_layer: int, query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
        return query.transpose(0, 1).contiguous().transpose(0, 1)

    def padded(_layer: int, query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
        return torch.cat([query, query], dim=1)[:, : query.shape[1]]

    plain = runner.forward(tokens, positions, lambda _l, query, _k, _v: query.clone())
    for attend in (transposed, padded):
        assert torch.equal(runner.forward(tokens, positions, attend), plain)


def test_random_weights_need_a_configuration_only(tmp_path: Path) -> None:
    tiny_models.FAMILIES["llama"]().save_pretrained(tmp_path)
    options = {"name": "onnxruntime", "weights": "random"}
    with LLM(str(tmp_path), runner=options) as llm:
        (output,) = llm.generate([[1, 2, 3]], GREEDY)
    assert len(output.outputs[0].token_ids) == NUM_TOKENS


# ---------------------------------------------------------------------- errors


def test_weights_that_are_not_there(llama: Path) -> None:
    path = llama / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(CheckpointError, match="says 3 layers, and the weights are of 2"):
        load(settings(llama))


def test_a_family_that_is_not_covered(tmp_path: Path) -> None:
    folder = tiny_models.save("phi3", tmp_path)
    with pytest.raises(UnsupportedModel, match=r"onnxruntime cover llama, .* is a phi3"):
        load(settings(folder))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_is_told_that_it_has_no_threads(llama: Path) -> None:
    code = (
        "import os; from paged_core import LLM\n"
        f"llm = LLM({str(llama)!r}, runner='onnxruntime', threads=2, num_blocks=9)\n"
        "llm.generate([[1, 2, 3]])\n"
        "if os.fork():\n"
        "    os.wait(); print(llm.generate([[1, 2, 3]])[0].finished)\n"
        "else:\n"
        "    try: print(llm.generate([[4, 2, 3]])[0].outputs[0].error, flush=True)\n"
        "    finally: os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "make the engine after the fork" in done.stdout
    assert "True" in done.stdout
