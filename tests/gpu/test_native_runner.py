"""The native runner on a CUDA device: right, without waiting, captured.

The kernels themselves are tested on the device by ``tests/unit/test_triton_ops.py`` and
``tests/unit/test_device_sampling.py``, which use it where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu.no_waiting import no_waiting
from integration import tiny_models
from integration.step_driver import settings
from integration.test_triton_runner import attend
from paged_backends.runners.native.runner import NativeRunner
from paged_backends.runners.settings import NativeSettings
from paged_core.engine.contexts import RunnerContext
from unit.attention_calls import repeated

pytestmark = pytest.mark.heavy


FAMILIES = ["llama", "qwen3", "gemma2", "gemma3", "gpt2", "opt, norms last"]


def load(folder: Path, device: str, dtype: str = "float32", **options: Any) -> NativeRunner:
    chosen = settings(folder, dtype=dtype, device=device)
    runner = NativeRunner(NativeSettings(**options), RunnerContext(settings=chosen))
    runner.load()
    return runner


def inputs(device: str, count: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 290, (count,), generator=generator)
    return tokens.to(device), torch.arange(5, 5 + count, device=device)


@torch.inference_mode()
def forward(runner: NativeRunner, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and best tokens."""
    hidden = runner.forward(tokens, positions, attend)
    return runner.logits(hidden), runner.best_tokens(hidden)[0]


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("options", [{}, {"kernels": "off"}, {"compile": True}], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_the_cpu(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    tiny_models.save(name, tmp_path)
    expected, best = forward(load(tmp_path, "cpu", kernels="off"), *inputs("cpu"))
    found, found_best = forward(load(tmp_path, "cuda", **options), *inputs("cuda"))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4)
    assert torch.equal(found_best.cpu(), best)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_in_16_bits_logits_are_close_to_those_in_32(name: str, dtype: str, tmp_path: Path) -> None:
    tiny_models.save(name, tmp_path)
    expected, _ = forward(load(tmp_path, "cpu", kernels="off"), *inputs("cpu"))
    found, best = forward(load(tmp_path, "cuda", dtype), *inputs("cuda"))
    assert (found.cpu() - expected).norm() / expected.norm() < 0.05
    assert torch.equal(best, found.argmax(-1))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_forward_pass_does_not_wait_for_the_device(name: str, tmp_path: Path) -> None:
    tiny_models.save(name, tmp_path)
    runner, given = load(tmp_path, "cuda", "bfloat16"), inputs("cuda")
    forward(runner, *given)  # compiles and loads the kernels
    with no_waiting():
        forward(runner, *given)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_forward_pass_is_captured_in_a_graph(name: str, tmp_path: Path) -> None:
    tiny_models.save(name, tmp_path)
    runner, (tokens, positions) = load(tmp_path, "cuda"), inputs("cuda")
    replay = repeated(lambda: forward(runner, tokens, positions), "cuda")
    for seed in (1, 2):
        tokens.copy_(inputs("cuda", seed=seed)[0])
        positions += 3
        logits, best = replay()
        expected, expected_best = forward(runner, tokens, positions)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(best, expected_best)
