"""Steps that are launched and collected later generate what steps one after another do.

The accelerator is emulated: work runs as late or as early as its events allow, or by dice, and what
is reused too early holds junk.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from emulation.accelerator import EMULATED_LOCAL, PACES, EmulatedStream
from integration import test_engine_on_models
from integration.test_engine_on_models import GREEDY, NUM_TOKENS, PROMPTS
from paged_backends.executors.accelerator import PinnedBuffers
from paged_backends.executors.decode_graphs import DecodeInputs
from paged_backends.executors.device_sampler import DeviceSampler
from paged_backends.executors.device_steps import DeviceSteps
from paged_backends.executors.local import LocalExecutor
from paged_core import LLM, SamplingParams
from paged_core.plugins.registry import Registry
from paged_testing import ExecutorConformance
from paged_testing.engines import registry_with
from unit.capturable_attention import CAPTURABLE, CapturableAttention

pytestmark = pytest.mark.heavy


SAMPLED = [
    SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=seed, **params)
    for seed, params in enumerate(
        (
            {},
            {"temperature": 0.7},
            {"temperature": 1.3, "top_k": 5},
            {"temperature": 0.9, "top_p": 0.8},
            {"temperature": 1.0, "min_p": 0.05},
            {"temperature": 0.8, "presence_penalty": 0.5},
            {"logprobs": 2},
            {"temperature": 1.0, "n": 2},
        )
    )
]
"""Greedy, drawn on the device, and in need of the host."""

SMALL_CHUNKS: dict[str, Any] = {
    "block_size": 4,
    "scheduler": {"max_num_batched_tokens": 7, "max_num_seqs": 16},
}
WAYS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "not ahead": {"async_scheduling": False},
    "eager": {"enforce_eager": True},
    "no graphs for large batches": {"scheduler": {"max_num_seqs": 3}},
    "small chunks": SMALL_CHUNKS,
    "many sizes of graphs": {"scheduler": {"max_num_seqs": 60}},
    "recompute": {"block_size": 4, "num_blocks": 11},
    "swap": {"block_size": 4, "num_blocks": 11, "preemption": "swap"},
    "swap, eager": {
        "block_size": 4,
        "num_blocks": 11,
        "preemption": "swap",
        "enforce_eager": True,
    },
    "v0 swap": {
        "profile": "vllm-v0",
        "block_size": 4,
        "num_blocks": 13,
        "preemption": "swap",
        "scheduler": {"name": "prefill_or_decode", "max_num_seqs": 16},
    },
}


@pytest.mark.usefixtures("compiled_kernels")
class TestPipeline(ExecutorConformance):
    component = "emulated"
    settings: ClassVar[Mapping[str, Any]] = {
        "model": "demo",
        "dtype": "float32",
        "enforce_eager": True,
    }
    max_examples = 4
    bytes_free = 64 << 10  # buffers that the emulated streams use again

    def make_registry(self) -> Registry:
        return registry_with(EMULATED_LOCAL)


def build(folder: Path, pace: str = "late", **settings: Any) -> LLM:
    values: dict[str, Any] = {
        "num_blocks": 400,
        "max_model_len": 44,
        "executor": {"name": "emulated", "pace": pace},
        "scheduler": {"max_num_seqs": 16},
    }
    return LLM(
        str(folder),
        registry=registry_with(CAPTURABLE, EMULATED_LOCAL),
        **{"attention": "capturable", "runner": "native", **values, **settings},
    )


def generate(llm: LLM, sampling: Any) -> list[list[list[int]]]:
    return [[one.token_ids for one in made.outputs] for made in llm.generate(PROMPTS, sampling)]


def assert_whole(llm: LLM) -> None:
    test_engine_on_models.assert_whole(llm)
    executor = llm.engine.executor
    assert isinstance(executor, LocalExecutor)
    assert isinstance(executor._steps, DeviceSteps)
    assert not executor._steps._in_flight


@pytest.fixture(scope="module")
def expected(llama: Path) -> dict[str, list[list[list[int]]]]:
    """Tokens that the steps of a CPU generate."""
    with build(llama, attention="torch", executor="local") as llm:
        return {"greedy": generate(llm, GREEDY), "sampled": generate(llm, SAMPLED)}


@pytest.mark.parametrize(
    ("way", "pace"),
    [
        *((way, "late") for way in WAYS),
        *(("swap", pace) for pace in PACES if pace != "late"),
        *(pytest.param(way, "random", marks=pytest.mark.long) for way in WAYS if way != "swap"),
    ],
)
def test_text_equals_that_of_a_cpu(
    llama: Path, expected: dict[str, list[list[list[int]]]], way: str, pace: str
) -> None:
    with build(llama, pace, **WAYS[way]) as llm:
        for _ in range(2):
            assert generate(llm, GREEDY) == expected["greedy"]
        assert generate(llm, SAMPLED) == expected["sampled"]
        assert_whole(llm)
        backend = llm.engine.executor._loaded.backend  # type: ignore[attr-defined]
        assert isinstance(backend, CapturableAttention)
        assert bool(backend.num_updates) is ("eager" not in way)


@pytest.mark.parametrize(("attention", "runner"), [("torch", "native"), ("cpu", "transformers")])
def test_backends_without_graphs(
    llama: Path, expected: dict[str, list[list[list[int]]]], attention: str, runner: str
) -> None:
    with build(llama, attention=attention, runner=runner, **WAYS["swap"]) as llm:
        assert generate(llm, GREEDY) == expected["greedy"]
        assert_whole(llm)


@pytest.mark.parametrize(("fails_in", "pace"), [*zip(range(1, 9, 2), PACES, strict=True)])
def test_after_a_failure_of_the_device_others_are_served(
    llama: Path,
    expected: dict[str, list[list[list[int]]]],
    monkeypatch: pytest.MonkeyPatch,
    fails_in: int,
    pace: str,
) -> None:
    with build(llama, pace, enforce_eager=True, **SMALL_CHUNKS) as llm:
        runner: Any = llm.engine.executor._loaded.runner  # type: ignore[attr-defined]
        forward, calls = runner.forward, count()

        def fails_once(*arguments: Any) -> Any:
            if next(calls) == fails_in:
                raise RuntimeError("an illegal memory access was encountered")
            return forward(*arguments)

        monkeypatch.setattr(runner, "forward", fails_once)
        outputs = llm.generate(PROMPTS, GREEDY)
        reasons = [made.outputs[0].finish_reason for made in outputs]
        assert "error" in reasons
        for made, reason, whole in zip(outputs, reasons, expected["greedy"], strict=True):
            assert reason == "error" or [made.outputs[0].token_ids] == whole
        assert_whole(llm)
        assert generate(llm, GREEDY) == expected["greedy"]
        assert_whole(llm)


# ---------------------------------------------------------------------- mistakes are found


def _lost_wait(_self: EmulatedStream, _event: Any) -> None:
    """A stream that does not wait for another."""


def _no_exchange(self: PinnedBuffers) -> torch.Tensor:
    """A single buffer for all steps in flight."""
    made = self.__dict__.setdefault("only", self._accelerator.pinned((self._size,), self._dtype))
    self._accelerator.reuse(made)
    return made


def _not_filled_in(_self: DeviceSampler, tokens: torch.Tensor, _sources: torch.Tensor) -> Any:
    """The token that the step before draws is not waited for."""
    return tokens.clone()


def _not_kept(
    _self: DeviceSampler, tokens: torch.Tensor, peaks: torch.Tensor, _targets: Any
) -> Any:
    """A token that is sampled is not left for the next step."""
    return torch.stack((tokens.int(), peaks.view(torch.int32)))


_stage = DecodeInputs.stage


def _made_anew(self: DecodeInputs, *arguments: Any) -> Any:
    """Static inputs that move between the capture and a replay."""
    self._memory = torch.empty_like(self._memory)
    return _stage(self, *arguments)


@pytest.mark.parametrize(
    ("place", "name", "fault", "pace"),
    [
        (EmulatedStream, "follow", _lost_wait, "late"),
        (PinnedBuffers, "take", _no_exchange, "late"),
        (DeviceSampler, "known", _not_filled_in, "late"),
        (DeviceSampler, "_keep", _not_kept, "late"),
        (DecodeInputs, "stage", _made_anew, "late"),
        (EmulatedStream, "borrow", _lost_wait, "late"),
        (EmulatedStream, "borrow", _lost_wait, "compute early"),
    ],
)
def test_a_mistake_in_the_order_of_work_is_found(
    llama: Path,
    expected: dict[str, list[list[list[int]]]],
    monkeypatch: pytest.MonkeyPatch,
    place: type,
    name: str,
    fault: Any,
    pace: str,
) -> None:
    with build(llama, pace, **WAYS["swap"]) as llm:
        assert generate(llm, GREEDY) == expected["greedy"]
    monkeypatch.setattr(place, name, fault)
    with build(llama, pace, **WAYS["swap"]) as llm:
        assert generate(llm, GREEDY) != expected["greedy"]
