"""The executor ``local`` on a CUDA device: memory, graphs, and a host that does not wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu.no_waiting import no_waiting
from integration import tiny_models
from integration.step_driver import load_runner, make_executor, settings
from integration.test_device_pipeline import GREEDY, PROMPTS, SAMPLED, WAYS, generate
from paged_backends.executors.cuda_accelerator import CudaAccelerator
from paged_backends.executors.host_device import ModelTimer
from paged_core import LLM, SamplingParams
from paged_core.plugins.registry import Registry
from paged_testing.engines import registry_with
from unit.capturable_attention import CAPTURABLE

pytestmark = pytest.mark.heavy


def build(folder: Path, **values: Any) -> LLM:
    known = {"num_blocks": 400, "max_model_len": 44, "device": "cuda", "dtype": "float32"}
    registry: Registry = registry_with(CAPTURABLE)
    wanted = values.get("attention", "capturable")
    if wanted not in registry.of("attention"):
        pytest.skip(f"there is no attention {wanted!r} here")
    if reason := registry.get("attention", wanted).unavailable_reason():
        pytest.skip(reason)
    known["scheduler"] = {"max_num_seqs": 12}  # each size of a batch is captured twice
    made = {"attention": "capturable", "runner": "native", **known, **values}
    llm = LLM(str(folder), registry=registry, **made)
    assert_captured(llm, made)
    return llm


def assert_captured(llm: LLM, settings: dict[str, Any]) -> None:
    """Steps that can be captured are; the engine would go on without, more slowly."""
    size = llm.engine.executor.model_size()  # type: ignore[attr-defined]
    off = settings.get("enforce_eager") or settings["attention"] == "torch"
    assert size.graphs.startswith("none: ") is bool(off), size.graphs


@pytest.mark.parametrize("attention", ["capturable", "triton", "cuda"])
@pytest.mark.parametrize("way", WAYS)
def test_text_is_the_same_with_graphs_and_without(llama: Path, attention: str, way: str) -> None:
    with build(
        llama, attention=attention, enforce_eager=True, async_scheduling=False, num_blocks=400
    ) as llm:
        expected = generate(llm, GREEDY), generate(llm, SAMPLED)
    with build(llama, attention=attention, **WAYS[way]) as llm:
        assert (generate(llm, GREEDY), generate(llm, SAMPLED)) == expected


def test_text_is_that_of_the_library(llama: Path) -> None:
    expected = tiny_models.generate(llama, PROMPTS, 10, device="cuda")
    with build(llama) as llm:
        assert [tokens for (tokens,) in generate(llm, GREEDY)] == expected


@pytest.mark.parametrize("attention", ["capturable", "torch", "triton", "cuda"])
@pytest.mark.parametrize("eager", [True, False])
def test_nothing_waits_for_the_device_while_sequences_decode(
    llama: Path, attention: str, eager: bool
) -> None:
    sampling = [
        SamplingParams(max_tokens=30, ignore_eos=True, temperature=temperature, top_p=top_p)
        for temperature, top_p in ((0.0, 1.0), (0.7, 1.0), (0.9, 0.8))
    ]
    with build(llama, attention=attention, enforce_eager=eager) as llm:
        assert llm.engine.executor.runs_in_background
        for _ in range(2):  # the first round compiles and loads what is used
            generations = llm.submit(PROMPTS[:3], sampling)
            for _ in range(5):
                llm.engine.step()
            with no_waiting():
                for _ in range(20):
                    llm.engine.step()
            for _ in llm.run(generations):
                pass
        assert all(len(g.output().outputs[0].token_ids) == 30 for g in generations)


def test_the_cache_takes_nine_tenths_of_the_memory(llama: Path) -> None:
    free, total = torch.cuda.mem_get_info()
    if free < 0.95 * total:
        pytest.skip("others use the device")
    scheduler = {"max_num_seqs": 1 << 21, "max_num_batched_tokens": 2048}
    with build(llama, num_blocks=None, max_model_len=256, scheduler=scheduler) as llm:
        free, total = torch.cuda.mem_get_info()
        assert 0.85 < 1 - free / total < 0.95
        outputs = llm.generate(PROMPTS, GREEDY)
        assert all(len(output.outputs[0].token_ids) == 10 for output in outputs)


def test_memory_of_the_host_is_pinned() -> None:
    accelerator = CudaAccelerator(torch.device("cuda", 0))
    for num_bytes in (64, 1 << 27):
        buffer = accelerator.pinned((num_bytes,), torch.uint8)
        assert buffer.is_pinned()
        target = torch.zeros(num_bytes, dtype=torch.uint8, device="cuda")
        target.copy_(buffer.fill_(7), non_blocking=True)
        torch.cuda.synchronize()
        assert bool((target == 7).all())


def test_a_capture_that_fails_leaves_nothing_behind() -> None:
    accelerator = CudaAccelerator(torch.device("cuda", 0))
    number = torch.ones((), device="cuda")
    with pytest.raises(RuntimeError, match="captur"):
        accelerator.capture(lambda: number * number.item())  # waits for the device
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    accelerator.memory()  # the allocator refuses to give back memory while a capture is in flight
    assert float(number + 1) == 2


def test_auto_chooses_cuda_and_measures_its_memory(llama: Path) -> None:
    assert load_runner(settings(llama, device="auto")).layers[0].device.startswith("cuda")
    executor = make_executor(settings(llama, device="auto"), needs_host_blocks=True)
    capacity = executor.start()
    assert capacity.num_blocks == capacity.num_host_blocks == 128


def test_the_model_is_timed_by_the_device() -> None:
    device = torch.device("cuda")
    timer = ModelTimer(device)
    torch.cuda._sleep(50_000_000)
    timer.stop()
    before = timer.seconds()
    torch.cuda.synchronize(device)
    assert before < 0.01 < timer.seconds()
