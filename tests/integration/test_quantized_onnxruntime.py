"""Runner ``onnxruntime`` with quantised weights: they are what the codes stand for, and no more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from integration import tiny_models
from integration.dequantized_models import dequantized_model, prompt_logits, relative_error
from integration.step_driver import StepDriver, make_executor, run_at_random, settings
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.onnx.runner import OnnxRuntimeRunner
from paged_backends.runners.settings import OnnxRuntimeSettings
from paged_core import LLM, SamplingParams
from paged_core.engine.contexts import RunnerContext
from paged_core.errors import SettingsError
from paged_core.interfaces.runner import Runner

NUM_TOKENS = 8
PROMPT = tiny_models.PROMPTS[2]
INT8 = {"quantization": "int8", "group_size": 32}
INT4 = {"quantization": "int4", "group_size": 64}
ERROR = {"int8": 0.02, "int4": 0.4}
"""Relative error of logits, at most, of models with random weights."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "quantized"


@pytest.fixture(scope="module", params=list(tiny_models.NATIVE))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("model"))


def load(folder: Path, chosen: Any = None, **options: Any) -> OnnxRuntimeRunner:
    context = RunnerContext(settings=chosen or settings(folder))
    runner = OnnxRuntimeRunner(OnnxRuntimeSettings(**options), context)
    runner.load()
    return runner


def logits(runner: Runner) -> Tensor:
    return prompt_logits(runner, PROMPT)


def save_dequantized(folder: Path, weight_format: WeightFormat, into: Path) -> Path:
    dequantized_model(folder, weight_format).save_pretrained(into)
    return into


@pytest.mark.parametrize("options", [INT8, INT4], ids=lambda chosen: chosen["quantization"])
def test_logits_are_those_of_the_weights_that_codes_stand_for(
    model: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    weight_format = WeightFormat(int(options["quantization"][3:]), options["group_size"])  # type: ignore[arg-type]
    same = save_dequantized(model, weight_format, tmp_path / "dequantized")
    found, whole = logits(load(model, **options)), logits(load(model))
    assert relative_error(found, logits(load(same))) < 1e-5
    assert 1e-4 < relative_error(found, whole) < ERROR[options["quantization"]]


def test_greedy_tokens_do_not_depend_on_chunks_batches_or_swaps(
    llama: Path, tmp_path: Path
) -> None:
    same = save_dequantized(llama, WeightFormat(4, 64), tmp_path / "dequantized")
    expected = tiny_models.generate(same, tiny_models.PROMPTS, NUM_TOKENS)
    chosen = settings(llama, block_size=4, num_blocks=40)
    executor = make_executor(chosen, needs_host_blocks=True, runner=load(llama, chosen, **INT4))
    driver = StepDriver(executor, 4, seed=1)
    assert run_at_random(driver, tiny_models.PROMPTS, NUM_TOKENS) == expected


def test_an_engine_serves_it_with_a_16_bit_cache(llama: Path) -> None:
    options: dict[str, Any] = {"runner": {"name": "onnxruntime", **INT8}, "attention": "torch"}
    with LLM(str(llama), dtype="bfloat16", num_blocks=40, **options) as llm:
        outputs = llm.generate(
            tiny_models.PROMPTS, SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
        )
    assert [len(output.outputs[0].token_ids) for output in outputs] == [NUM_TOKENS] * 4


def events(logs: Any) -> list[bool]:
    return [entry["cached"] for entry in logs if entry["event"] == "weights_quantized"]


def test_a_checkpoint_that_changed_is_quantised_again(llama: Path, tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path / "changing")
    before = logits(load(folder, **INT4))
    state = (folder / "model.safetensors").stat()
    tiny_models.save("llama", folder, seed=1)
    os.utime(folder / "model.safetensors", ns=(state.st_atime_ns, state.st_mtime_ns))
    with capture_logs() as logs:
        after = logits(load(folder, **INT4))
    assert events(logs) == [False]
    assert relative_error(after, before) > 0.5


def test_random_weights_are_quantised_without_a_file(llama: Path, cache: Path) -> None:
    whole = logits(load(llama, weights="random"))
    found = logits(load(llama, weights="random", **INT8))
    assert 1e-4 < relative_error(found, whole) < ERROR["int8"]
    assert not cache.exists()


def test_memory_of_codes_is_not_kept_in_the_process(llama: Path) -> None:
    """A session of its own reads norms, biases and scales; codes it has packed."""
    runner = load(llama, **INT8)
    sessions = [runner._model._head, *runner._model._sessions]
    kept = [weight for session in sessions for weight in session._kept]
    assert all(weight.numel() < 1000 for weight in kept if weight.dtype == torch.uint8)


def test_an_onnx_file_is_not_quantised() -> None:
    folder = Path(__file__).parents[1] / "data" / "onnx" / "optimum-gpt2"
    with pytest.raises(SettingsError, match=r"runner\.quantization: .* as they are; set it to off"):
        LLM(str(folder), runner={"name": "onnxruntime", **INT8}, num_blocks=40)
