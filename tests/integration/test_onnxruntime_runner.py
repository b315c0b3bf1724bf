"""The runner ``onnxruntime`` says what the library itself generates, for all that it covers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration import tiny_models
from integration.step_driver import StepDriver, make_executor, run_at_random, settings
from paged_backends.runners.onnx.runner import OnnxRuntimeRunner
from paged_backends.runners.settings import OnnxRuntimeSettings
from paged_core import LLM, SamplingParams
from paged_core.interfaces.runner import RunnerParts

NUM_TOKENS = 8
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module", params=list(tiny_models.NATIVE))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    return tiny_models.generate(model, tiny_models.PROMPTS, NUM_TOKENS)


def load(chosen: Any, **options: Any) -> OnnxRuntimeRunner:
    runner = OnnxRuntimeRunner(OnnxRuntimeSettings(**options), RunnerParts(settings=chosen))
    runner.load()
    return runner


def answers(folder: Path, **changes: Any) -> list[list[int]]:
    with LLM(str(folder), **{"runner": "onnxruntime", "num_blocks": 40, **changes}) as llm:
        outputs = llm.generate(tiny_models.PROMPTS, GREEDY)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("block_size", [1, 16])
def test_greedy_tokens_equal_those_of_generate(
    model: Path, expected: list[list[int]], block_size: int
) -> None:
    """In chunks and batches, and swapped out and in, at random."""
    chosen = settings(model, block_size=block_size, num_blocks=160 // block_size)
    runner = load(chosen)
    executor = make_executor(chosen, needs_host_blocks=True, runner=runner)
    driver = StepDriver(executor, block_size, seed=block_size)
    assert run_at_random(driver, tiny_models.PROMPTS, NUM_TOKENS) == expected


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "opt"])
def test_an_engine_that_prefills_in_chunks_and_preempts(
    name: str, preemption: str, tmp_path: Path
) -> None:
    tiny_models.save(name, tmp_path)
    expected = tiny_models.generate(tmp_path, tiny_models.PROMPTS, NUM_TOKENS)
    options: dict[str, Any] = {
        "runner": "onnxruntime",
        "preemption": preemption,
        "num_blocks": 12,
        "block_size": 4,
        "scheduler": {"name": "token_budget", "max_num_batched_tokens": 8},
    }
    with LLM(str(tmp_path), **options) as llm:
        outputs = llm.generate(tiny_models.PROMPTS, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == expected
