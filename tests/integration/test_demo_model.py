"""The demo model that ships with the package answers what its model card says, through `LLM`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paged_backends.checkpoint.folder import resolve_checkpoint
from paged_core import LLM, SamplingParams

ANSWERS: list[dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("demo_answers.yaml").read_text(encoding="utf-8")
)
LONGEST_ANSWER = 200
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, Any]]:
    """The output for each prompt, all of them served as one batch."""
    prompts = [entry["prompt"] for entry in ANSWERS]
    with LLM(model="demo") as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=LONGEST_ANSWER))
    yield {prompt: output.outputs[0] for prompt, output in zip(prompts, outputs, strict=True)}


@pytest.mark.parametrize("entry", ANSWERS, ids=[repr(entry["prompt"]) for entry in ANSWERS])
def test_answer(entry: dict[str, str], answers: dict[str, Any]) -> None:
    answer = answers[entry["prompt"]]
    assert entry["contains"] in answer.text
    assert answer.finish_reason == "stop"


def test_the_folder_is_small_enough_to_ship() -> None:
    folder = resolve_checkpoint("demo")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 8 * MEGABYTE
