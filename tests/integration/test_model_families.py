"""Every family of models says over the paged cache what the library itself generates."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration import tiny_models
from integration.step_driver import (
    StepDriver,
    load_runner,
    make_executor,
    run_at_random,
    settings,
)
from paged_core.errors import UnsupportedModel

NUM_TOKENS = 8


@pytest.fixture(scope="module", params=list(tiny_models.FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def expected(family: Path) -> list[list[int]]:
    return tiny_models.generate(family, tiny_models.PROMPTS, NUM_TOKENS)


@pytest.mark.parametrize("block_size", [1, 4, 16, 256])
def test_greedy_tokens_equal_those_of_generate(
    family: Path, expected: list[list[int]], block_size: int
) -> None:
    num_blocks = max(4, 160 // block_size)
    chosen = settings(family, block_size=block_size, num_blocks=num_blocks)
    executor = make_executor(chosen, needs_host_blocks=True)
    driver = StepDriver(executor, block_size, seed=block_size)
    for _ in range(2):
        assert run_at_random(driver, tiny_models.PROMPTS, NUM_TOKENS) == expected


@pytest.mark.parametrize("name", list(tiny_models.UNSUPPORTED))
def test_what_cannot_be_served_is_refused_by_name(name: str, tmp_path: Path) -> None:
    _, reason = tiny_models.UNSUPPORTED[name]
    tiny_models.save(name, tmp_path)
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        load_runner(settings(tmp_path))
    assert "cannot be served" in str(caught.value)
