"""Executor ``local`` keeps its promises to the engine beside the right tokens."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from emulation.accelerator import EMULATED_LOCAL
from integration import tiny_models
from integration.step_driver import (
    StepDriver,
    load_runner,
    make_executor,
    settings,
)
from paged_backends.executors import model_steps
from paged_backends.executors.settings import LocalSettings
from paged_core.errors import EngineError, SettingsError
from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams
from paged_core.step import StepInput
from paged_testing import registry_with

pytestmark = pytest.mark.heavy


PROMPT = [3, 5, 7, 11, 13, 17, 19]
OTHER = [23, 29, 31]


@pytest.fixture(scope="module")
def greedy(llama: Path) -> list[list[int]]:
    return tiny_models.generate(llama, [PROMPT, OTHER], 4)


def make_driver(llama: Path) -> StepDriver:
    executor = make_executor(settings(llama, block_size=4, num_blocks=40), needs_host_blocks=True)
    return StepDriver(executor, 4)


@pytest.fixture
def driver(llama: Path) -> StepDriver:
    return make_driver(llama)


# ---------------------------------------------------------------------- drawing


def test_prompt_logprobs_are_the_models_own_however_the_prompt_is_cut(llama: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    with torch.inference_mode():
        reference = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    expected = [float(reference[place, token]) for place, token in enumerate(PROMPT[1:])]
    sampling = SamplingParams(prompt_logprobs=2, max_tokens=None)
    for chunks in ([7], [3, 4], [1, 1, 4, 1]):
        driver = make_driver(llama)
        sequence, entries = driver.add(PROMPT, sampling), []
        for chunk in chunks:
            entries += driver.step([(sequence, chunk)]).prompt_logprobs[sequence.id]
        assert [next(iter(entry)) for entry in entries] == PROMPT[1:]
        assert [next(iter(entry.values())) for entry in entries] == pytest.approx(
            expected, abs=1e-4
        )
        assert driver.step([(sequence, 1)]).prompt_logprobs == {sequence.id: []}


# ---------------------------------------------------------------------- failing


def test_after_a_step_that_raised_the_others_go_on(
    llama: Path, greedy: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(settings(llama, block_size=4))
    executor = make_executor(settings(llama, block_size=4, num_blocks=40), runner=runner)
    driver = StepDriver(executor, 4)
    good, bad = driver.add(OTHER), driver.add(PROMPT)
    driver.step([(good, 3)])

    def out_of_memory(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "forward", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            driver.step([(bad, 7)])
    driver.remove(bad)
    driver._changes = {"removed": [bad.id]}
    for _ in range(3):
        driver.step([(good, 1)])
    assert good.output == greedy[1]
    again = driver.add(PROMPT)
    driver.step([(again, 7)])
    assert again.output == greedy[0][:1]


# ---------------------------------------------------------------------- blocks


def test_rows_are_used_again(driver: StepDriver) -> None:
    rows = driver.executor._loaded.rows  # type: ignore[union-attr]
    for round_ in range(40):
        sequences = [driver.add([round_ + 1, 2]) for _ in range(3)]
        driver.step([(sequence, 2) for sequence in sequences])
        for sequence in sequences:
            driver.remove(sequence)
    driver.step([])
    assert len(rows) == 0
    assert len(rows.num_tokens_C) == 16


# ---------------------------------------------------------------------- capacity


def capacity(llama: Path, *, needs_host_blocks: bool = False, **changes: Any) -> Any:
    return make_executor(settings(llama, **changes), needs_host_blocks=needs_host_blocks).start()


def test_the_default_is_no_more_than_can_be_used(llama: Path) -> None:
    found = capacity(llama)  # 8 sequences of 256 tokens, in blocks of 16
    assert found.num_blocks == 8 * 16
    assert (found.num_host_blocks, found.max_model_len) == (0, 256)
    assert (found.vocab_size, found.eos_token_ids) == (300, {2})
    unlimited = capacity(llama, scheduler=SimpleNamespace(max_num_seqs=2))
    assert unlimited.num_blocks == 256 * 16, "names of options say nothing"


def test_memory_bounds_the_blocks(llama: Path) -> None:
    block = 2 * 2 * 2 * 16 * 16 * 4  # layers, key and value, heads, dimensions, tokens, bytes
    assert capacity(llama, kv_cache_memory=20 * block).num_blocks == 20
    assert capacity(llama, kv_cache_memory=1.0).num_blocks == 128
    with pytest.raises(SettingsError, match="raise kv_cache_memory"):
        capacity(llama, kv_cache_memory=block - 1)
    with pytest.raises(SettingsError, match=r"kv_cache_memory.*are free"):
        capacity(llama, kv_cache_memory=1 << 60)
    with pytest.raises(SettingsError, match=r"num_blocks.*are free"):
        capacity(llama, num_blocks=1 << 50)


def test_a_small_pool_lowers_the_length(llama: Path) -> None:
    assert capacity(llama, num_blocks=3).max_model_len == 48
    assert capacity(llama, num_blocks=3, max_model_len=100).max_model_len == 100
    assert capacity(llama, max_model_len=100).max_model_len == 100
    with pytest.raises(SettingsError, match="256 positions"):
        capacity(llama, max_model_len=257)


def test_host_blocks_where_swapping_may_need_them(llama: Path) -> None:
    assert capacity(llama, num_blocks=9, needs_host_blocks=True).num_host_blocks == 9
    assert capacity(llama, num_blocks=9, num_host_blocks=4).num_host_blocks == 4
    with pytest.raises(SettingsError, match="num_host_blocks"):
        capacity(llama, num_blocks=9, num_host_blocks=1 << 50)


# ---------------------------------------------------------------------- life


def test_a_closed_executor_runs_nothing(driver: StepDriver) -> None:
    driver.executor.close()
    with pytest.raises(EngineError):
        driver.executor.submit(StepInput(number=0))


@pytest.mark.parametrize("given", [0.5, "50%", -1, True, False, "much"])
def test_what_is_no_number_of_bytes_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="populate_ahead"):
        LocalSettings(populate_ahead=given)


def texts(**executor: Any) -> list[str]:
    """Texts of the demo model; its cache is several times what is populated ahead."""
    prompts = [f"a block table {number} " * 40 for number in range(6)]
    options = {"num_blocks": 256, "threads": 1, "executor": {"name": "local", **executor}}
    with LLM(**options, registry=registry_with(EMULATED_LOCAL)) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=8))
    return [output.outputs[0].text for output in outputs]


def test_populating_ahead_changes_no_text_and_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if sys.platform == "linux":  # also with several memory nodes
        monkeypatch.setattr(model_steps, "unpopulated_reason", lambda: None)
    before = set(threading.enumerate())
    expected = texts(populate_ahead=0)
    assert texts(populate_ahead="256KiB") == texts() == expected
    assert set(threading.enumerate()) <= before
