"""Requests get from their model what they leave out, and are told what they do not get."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from paged_backends.checkpoint.folder import resolve_checkpoint
from paged_core import LLM, SamplingParams
from paged_core.errors import CheckpointError
from paged_core.text.front_end import FrontEnd
from paged_plugins.server.openai import parameters
from paged_plugins.server.openai.protocol import ChatRequest, CompletionRequest
from paged_plugins.server.settings import HttpSettings

STORED = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "max_new_tokens": 5, "do_sample": False}


def model(folder: Path, **stored: Any) -> str:
    """The demo model, which recommends these parameters."""
    shutil.copytree(resolve_checkpoint("demo"), folder, dirs_exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **stored}))
    return str(folder)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = model(tmp_path_factory.mktemp("model"), **STORED)
    with LLM(folder, num_blocks=32, max_model_len=64, threads=1) as made:
        yield made


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "max_tokens": 5}),
        ({"temperature": 0}, {"temperature": 0, "max_tokens": 5}),
        ({"temperature": 0, "top_p": 0.5}, {"temperature": 0, "top_p": 0.5, "max_tokens": 5}),
        ({"top_k": 0, "max_tokens": 9}, STORED | {"top_k": 0, "max_tokens": 9}),
        ({"beam_width": 2}, {"beam_width": 2, "max_tokens": 5}),
        ({"best_of": 2}, STORED | {"best_of": 2, "max_tokens": 5}),
    ],
)
def test_what_a_request_says_wins(given: Any, expected: dict[str, Any], llm: LLM) -> None:
    wanted = SamplingParams(**{k: expected[k] for k in expected if k in parameters_of()})
    assert SamplingParams(**llm.front_end.completed(given)) == wanted
    service: Any = SimpleNamespace(
        client=SimpleNamespace(front_end=llm.front_end), options=HttpSettings()
    )
    limit = given.get("max_tokens")
    for kind in (
        ChatRequest(messages=[], **given),
        CompletionRequest(prompt="x", **given),
    ):
        asked = parameters._sampling_params(service, kind, max_tokens=limit, logprobs=None)
        assert asked == wanted


def parameters_of() -> set[str]:
    return set(SamplingParams.__dataclass_fields__)


def test_offline_they_hold_where_no_parameters_are_given(llm: LLM) -> None:
    default, plain = llm.add("Once"), llm.add("Once", SamplingParams())
    assert default.request.sampling == SamplingParams(
        temperature=0.6, top_p=0.9, top_k=20, max_tokens=5
    )
    assert plain.request.sampling == SamplingParams()
    llm.abort([default, plain])


@pytest.mark.parametrize(
    ("stored", "asked", "defaults"),
    [
        (STORED, "none", {}),
        ({}, "auto", {}),
        ({"top_p": 0.5, "top_k": None}, "auto", {"top_p": 0.5, "temperature": 1.0}),
        ({"repetition_penalty": 1.2, "max_length": 20}, "auto", {"repetition_penalty": 1.2}),
    ],
)
def test_they_are_said_at_start(stored: Any, asked: Any, defaults: Any, tmp_path: Path) -> None:
    chosen = {"num_blocks": 8, "max_model_len": 64, "generation_config": asked}
    with structlog.testing.capture_logs() as lines, LLM(model(tmp_path, **stored), **chosen) as llm:
        assert llm.front_end.defaults == defaults
    said = [line for line in lines if line["event"] == "sampling_defaults"]
    assert [{key: line[key] for key in defaults} for line in said] == [defaults] * bool(defaults)


@pytest.mark.parametrize("stored", [{"temperature": -1}, {"top_p": "much"}, {"top_k": 1.5}])
def test_wrong_ones_are_refused_by_name(stored: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{next(iter(stored))}.*generation_config: none"):
        LLM(model(tmp_path, **stored), num_blocks=8)


@pytest.mark.parametrize("asked", [1, 40, 60, None])
def test_tokens_that_have_no_room_are_said(asked: int | None, llm: LLM) -> None:
    front_end = llm.front_end
    front_end._warned.clear()
    sampling = SamplingParams(max_tokens=asked, ignore_eos=True)
    with structlog.testing.capture_logs() as lines:
        outputs = llm.generate([[5] * 20, [5] * 20], sampling)
    cut = asked == 60
    assert [one.outputs[0].is_cut for one in outputs] == [cut, cut]
    assert [line["to_tokens"] for line in lines if line["event"] == "max_tokens_cut"] == [44] * cut


class Doubling:
    """A tokenizer that puts token 0 before a text, whose letters are tokens."""

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [0 if letter == "^" else ord(letter) for letter in text]


@pytest.mark.parametrize(
    ("prompt", "expected", "said"),
    [
        ("ab", [0, 97, 98], False),
        ("^ab", [0, 97, 98], True),
        ("^^a", [0, 0, 97], True),
        ("^", [0], True),
        ({"prompt": "^a"}, [0, 97], True),
        ({"prompt": "^a", "add_special_tokens": True}, [0, 0, 97], False),
        ({"prompt": "^a", "add_special_tokens": False}, [0, 97], False),
        ([0, 0, 97], [0, 0, 97], False),
    ],
)
def test_a_prompt_from_a_template_begins_once(prompt: Any, expected: list[int], said: bool) -> None:
    tokenizer: Any = Doubling()
    front_end = FrontEnd(tokenizer, max_model_len=64, name="none")
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            assert front_end.encode(prompt)[1] == tuple(expected)
    assert [line["event"] for line in lines] == ["begins_twice"] * said
