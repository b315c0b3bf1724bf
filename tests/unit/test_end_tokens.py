"""Ends of sequences: what any file of a checkpoint calls so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paged_backends.checkpoint.end_tokens import end_tokens
from paged_backends.checkpoint.folder import Checkpoint
from paged_core.errors import CheckpointError

NEWER = {"eos_token": "<x>", "added_tokens_decoder": {"9": {"content": "<x>"}}}
LISTED = {"added_tokens": [{"id": 7, "content": "</s>"}, {"id": 8, "content": "<end>"}]}


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, {2}),
        ({"config": {"eos_token_id": None}}, set()),
        ({"config": {"eos_token_id": 3}}, {3}),
        ({"config": {"text_config": {"eos_token_id": [3, 4]}}}, {3, 4}),
        ({"generation_config": {"eos_token_id": [5, 6]}}, {5, 6}),
        ({"config": {"eos_token_id": 3}, "generation_config": {"eos_token_id": 5}}, {3, 5}),
        ({"tokenizer_config": {"eos_token": "</s>"}}, {2}),
        ({"tokenizer_config": {"eos_token": "<end>"}, "tokenizer": LISTED}, {8}),
        (
            {
                "config": {"eos_token_id": 3},
                "tokenizer_config": {"eos_token": {"content": "<end>"}},
                "tokenizer": LISTED,
            },
            {3, 8},
        ),
        ({"tokenizer_config": NEWER}, {9}),
        ({"tokenizer_config": {"eos_token": 3}, "tokenizer": LISTED}, {2}),
    ],
    ids=str,
)
def test_ends_are_all_that_are_named(files: dict[str, Any], ends: set[int], tmp_path: Path) -> None:
    for name, content in ({"config": {}} | files).items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert end_tokens(Checkpoint.open(str(tmp_path)), usual=2) == ends


@pytest.mark.parametrize("name", ["config", "generation_config"])
def test_a_wrong_one_is_refused_by_the_name_of_its_file(name: str, tmp_path: Path) -> None:
    for file, content in ({"config": {}} | {name: {"eos_token_id": "x"}}).items():
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"/{name}.json says that eos_token_id is"):
        end_tokens(Checkpoint.open(str(tmp_path)))
