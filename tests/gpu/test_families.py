"""Models of every family on a CUDA device, whatever the size of blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration import tiny_models
from integration.step_driver import StepDriver, make_executor, run_at_random, settings

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("name", list(tiny_models.FAMILIES))
def test_greedy_tokens_equal_those_of_generate(name: str, tmp_path: Path) -> None:
    folder = tiny_models.save(name, tmp_path)
    expected = tiny_models.generate(folder, tiny_models.PROMPTS, 8, device="cuda")
    for block_size in (1, 4, 16, 256):
        chosen = settings(
            folder, device="cuda", block_size=block_size, num_blocks=max(4, 160 // block_size)
        )
        driver = StepDriver(
            make_executor(chosen, needs_host_blocks=True), block_size, seed=block_size
        )
        assert run_at_random(driver, tiny_models.PROMPTS, 8) == expected
