"""The native runner over kernels in Triton, or compiled by PyTorch, equals plain PyTorch.

On a machine without a GPU, Triton's interpreter executes the kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emulation.accelerator import EMULATED_LOCAL
from integration import tiny_models
from integration.step_driver import settings
from paged_backends.kernels.triton.availability import is_interpreted
from paged_backends.runners.native.runner import NativeRunner
from paged_backends.runners.settings import NativeSettings
from paged_core import LLM, SamplingParams
from paged_core.engine.contexts import RunnerContext
from paged_testing import registry_with
from unit.triton_device import DEVICE

pytestmark = pytest.mark.heavy


pytest.importorskip("triton")


def load(folder: Path, dtype: str = "float32", **options: Any) -> NativeRunner:
    chosen = settings(folder, dtype=dtype, device=DEVICE)
    runner = NativeRunner(NativeSettings(**options), RunnerContext(settings=chosen))
    runner.load()
    return runner


def attend(_layer: int, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor) -> Tensor:  # noqa: N803
    """Mix all three, each token by itself."""
    group = query_THD.shape[1] // key_TKD.shape[1]
    return (query_THD * key_TKD.repeat_interleave(group, 1)).tanh() + value_TKD.repeat_interleave(
        group, 1
    )


@torch.inference_mode()
def forward(runner: NativeRunner, count: int = 6) -> tuple[Tensor, Tensor]:
    """Return logits and best tokens."""
    tokens = torch.tensor(tiny_models.PROMPTS[2], device=DEVICE)[:count]
    hidden = runner.forward(tokens, torch.arange(3, 3 + count, device=DEVICE), attend)
    return runner.logits(hidden), runner.best_tokens(hidden)[0]


@pytest.mark.parametrize("name", list(tiny_models.NATIVE))
def test_logits_equal_those_of_pytorch(name: str, tmp_path: Path) -> None:
    tiny_models.save(name, tmp_path)
    expected, best = forward(load(tmp_path, kernels="off"))
    found, found_best = forward(load(tmp_path, kernels="triton"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found_best, best)


@pytest.mark.skipif(not is_interpreted(), reason="there is a GPU, which tests/gpu uses")
def test_heads_are_prepared_in_captured_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paged_backends.attention.triton_layer import TritonLayer

    plans = []
    prepare = TritonLayer.prepare_and_forward

    def noted(*args: Any) -> Tensor:
        plans.append(args[4])
        return prepare(*args)

    monkeypatch.setattr(TritonLayer, "prepare_and_forward", noted)
    tiny_models.save("qwen3", tmp_path)
    texts = []
    for kernels, attention, executor in (
        ("off", "torch", "local"),
        ("triton", "triton", "emulated"),
    ):
        with LLM(
            str(tmp_path),
            registry=registry_with(EMULATED_LOCAL),
            attention=attention,
            runner={"name": "native", "kernels": kernels},
            executor=executor,
            scheduler={"max_num_seqs": 2},
            num_blocks=20,
            max_model_len=64,
        ) as llm:
            asked = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
            outputs = llm.generate(tiny_models.PROMPTS[:3], asked)
        texts.append([output.outputs[0].token_ids for output in outputs])
    assert texts[0] == texts[1]
    is_captured = [plan.bounds is None for plan in plans]
    assert any(is_captured)
    assert not all(is_captured)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gemma3", "opt, norms last"])
def test_compiled_layers_equal_others(name: str, tmp_path: Path) -> None:
    tiny_models.save(name, tmp_path)
    plain, compiled = load(tmp_path, kernels="off"), load(tmp_path, compile=True)
    for count in (6, 3, 1):
        expected, best = forward(plain, count)
        found, found_best = forward(compiled, count)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(found_best, best)
