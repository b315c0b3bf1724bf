"""The runner ``onnxruntime`` on a CUDA device: what ``native`` computes there, without waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpu.no_waiting import no_waiting
from gpu.test_native_runner import inputs
from gpu.test_native_runner import load as load_native
from integration import tiny_models
from integration.step_driver import settings
from integration.test_triton_runner import attend
from paged_backends.runners.onnx.packages import unavailable_reason
from paged_backends.runners.settings import OnnxRuntimeSettings
from paged_core import LLM, SamplingParams
from paged_core.engine.contexts import RunnerContext

if unavailable_reason() is not None:
    pytest.skip(f"{unavailable_reason()}", allow_module_level=True)

from paged_backends.runners.onnx.packages import cuda_problem
from paged_backends.runners.onnx.runner import OnnxRuntimeRunner

pytestmark = pytest.mark.heavy


if torch.cuda.is_available() and cuda_problem() is not None:
    pytest.skip(f"{cuda_problem()}", allow_module_level=True)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt2", "opt"])
def test_it_computes_what_native_computes(name: str, dtype: str, tmp_path: Path) -> None:
    tiny_models.save(name, tmp_path)
    chosen = settings(tmp_path, dtype=dtype, device="cuda")
    runner = OnnxRuntimeRunner(OnnxRuntimeSettings(), RunnerContext(settings=chosen))
    runner.load()
    native = load_native(tmp_path, "cuda", dtype)
    found, expected = (one.logits(one.forward(*inputs("cuda"), attend)) for one in (runner, native))
    error = (found - expected).norm() / expected.norm()
    assert error < (1e-4 if dtype == "float32" else 0.03)
    with no_waiting():
        runner.logits(runner.forward(*inputs("cuda"), attend))


def test_an_engine_serves_with_it(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path)
    expected = tiny_models.generate(folder, tiny_models.PROMPTS, 8)
    with LLM(str(folder), runner="onnxruntime", device="cuda", dtype="float32") as llm:
        outputs = llm.generate(tiny_models.PROMPTS, SamplingParams(max_tokens=8, ignore_eos=True))
    assert [output.outputs[0].token_ids for output in outputs] == expected
