"""Every family of models says over the paged cache what the library itself generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration import tiny_models
from integration.step_driver import load_runner, served_at_random, settings
from paged_core.errors import UnsupportedModel

pytestmark = pytest.mark.heavy


NUM_TOKENS = 8
RUNNERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "transformers": ({}, [4, 256]),
    "native": ({}, [1, 16]),
    "native, plain": ({"kernels": "off"}, [4]),
    "native, portable": ({"kernels": "portable"}, [4]),
    "onnxruntime": ({}, [4]),
}
"""Options of runners, and the sizes of blocks that each is tried with."""
OTHER_KERNELS = ("native, plain", "native, portable")
CASES = [
    pytest.param(
        *(name, runner, size),
        # a family with one of the other kernels and of the sizes, the next one with the other
        marks=[pytest.mark.long]
        * (runner == OTHER_KERNELS[number % 2] or size != sizes[number % len(sizes)]),
        id=f"{name}-{runner}-{size}",
    )
    for number, name in enumerate(tiny_models.FAMILIES | tiny_models.NATIVE)
    for runner, (_, sizes) in RUNNERS.items()
    if name in (tiny_models.FAMILIES if runner == "transformers" else tiny_models.NATIVE)
    for size in sizes
]


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model, and what the library generates."""
    folder = tiny_models.save(request.param, tmp_path_factory.mktemp("model"))
    return folder, tiny_models.generate(folder, tiny_models.PROMPTS, NUM_TOKENS)


@pytest.mark.parametrize(("family", "runner", "size"), CASES, indirect=["family"])
def test_greedy_tokens_equal_those_of_generate(family: Any, runner: str, size: int) -> None:
    """In chunks and batches, swapped out and in, at random; twice, with the cache of before."""
    folder, expected = family
    chosen = settings(folder, block_size=size, num_blocks=max(4, 160 // size))
    loaded = load_runner(chosen, runner.partition(",")[0], **RUNNERS[runner][0])
    prompts = tiny_models.PROMPTS
    found = served_at_random(chosen, loaded, prompts, NUM_TOKENS, seed=size, times=2)
    assert found == [expected] * 2


@pytest.mark.parametrize("name", list(tiny_models.UNSUPPORTED))
def test_what_cannot_be_served_is_refused_by_name(name: str, tmp_path: Path) -> None:
    _, reason = tiny_models.UNSUPPORTED[name]
    tiny_models.save(name, tmp_path)
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        load_runner(tmp_path)
    assert "cannot be served" in str(caught.value)
