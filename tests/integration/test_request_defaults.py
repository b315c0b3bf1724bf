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
from transformers import GenerationConfig

from paged_backends.checkpoint import sampling_defaults as defaults_of_checkpoints
from paged_backends.checkpoint.folder import resolve_checkpoint
from paged_backends.checkpoint.sampling_defaults import sampling_defaults
from paged_core import LLM, SamplingParams
from paged_core.errors import CheckpointError, RequestError
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
        ({"stop_strings": "x", "num_beams": 3}, "auto", {"stop": ("x",)}),
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


ORDERS = {"min_new_tokens": 9, "stop_strings": "x", "bad_words_ids": [[5, 6], [2]]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"min_tokens": 5, "stop": ("x",), "max_tokens": 5}),
        ({"max_tokens": 20}, {"min_tokens": 9, "stop": ("x",), "max_tokens": 20}),
        ({"max_tokens": None}, {"min_tokens": 9, "stop": ("x",), "max_tokens": None}),
        ({"min_tokens": 1, "stop": "y"}, {"min_tokens": 1, "stop": ("y",), "max_tokens": 5}),
        ({"detokenize": False}, {"min_tokens": 5, "detokenize": False, "max_tokens": 5}),
        ({"beam_width": 2}, {"min_tokens": 5, "beam_width": 2, "max_tokens": 5}),
    ],
)
def test_what_generate_obeys_is_obeyed_here(
    given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    folder = model(tmp_path, max_new_tokens=5, suppress_tokens=[-1, 7], **ORDERS)
    defaults = sampling_defaults(Path(folder))
    tokenizer: Any = Doubling()
    front_end = FrontEnd(tokenizer, max_model_len=64, name="none", defaults=defaults)
    wanted = SamplingParams(**expected, bad_words_ids=((5, 6), (7,)))
    assert SamplingParams(**front_end.completed(given)) == wanted


IGNORED = {"no_repeat_ngram_size": 2, "forced_eos_token_id": 2, "num_beams": 4, "min_length": 3}
NEUTRAL = {"guidance_scale": 1.0, "num_beams": 1, "constraints": None, "begin_suppress_tokens": []}


def test_what_is_not_obeyed_is_named(tmp_path: Path) -> None:
    for stored, named in ((NEUTRAL, []), (NEUTRAL | IGNORED, [IGNORED.keys()])):
        with structlog.testing.capture_logs() as lines:
            sampling_defaults(Path(model(tmp_path, transformers_version="5", x=1, **stored)))
        assert [set(line["keys"]) for line in lines] == [set(each) for each in named]


def test_older_models_have_them_in_their_configuration(tmp_path: Path) -> None:
    """As transformers reads them there: without those at their defaults, which old files list."""
    folder = model(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {"temperature": 1.0, "top_k": 50, "num_beams": 4}
    config["text_config"] = {"suppress_tokens": [7], "num_beams": 1}
    path.write_text(json.dumps(config | {"repetition_penalty": 3.0}))
    assert sampling_defaults(Path(folder)) == {}
    (tmp_path / "generation_config.json").unlink()
    with structlog.testing.capture_logs() as lines:
        found = sampling_defaults(Path(folder))
    assert found == {"repetition_penalty": 3.0, "bad_words_ids": ((7,),)}
    assert [line["keys"] for line in lines] == [["num_beams"]]
    path.write_text(json.dumps(config | {"top_p": 0.5, "text_config": None}))
    assert sampling_defaults(Path(folder)) == {"top_p": 0.5, "temperature": 1.0}
    path.write_text(json.dumps(config | {"top_p": 2}))
    with pytest.raises(CheckpointError, match=r"config.json: top_p .*generation_config: none"):
        sampling_defaults(Path(folder))


def test_tokens_beyond_the_vocabulary(tmp_path: Path) -> None:
    """As transformers suppresses those that there are, and refuses to ban others."""
    found = sampling_defaults(Path(model(tmp_path, suppress_tokens=[7, 10**6])))
    assert found == {"bad_words_ids": ((7,),)}
    with pytest.raises(CheckpointError, match=r"generation_config.json: bad_words_ids has a token"):
        sampling_defaults(Path(model(tmp_path, bad_words_ids=[[7], [5, 10**6]])))


def test_keys_that_are_looked_at_are_those_of_generate() -> None:
    """Every key of this version of transformers is taken, named, or known to change no result."""
    known = {*defaults_of_checkpoints._NAMES, *defaults_of_checkpoints._NEUTRAL}
    of_beams = {"length_penalty", "early_stopping", "diversity_penalty"}
    left = GenerationConfig().to_dict().keys() - known - of_beams
    assert left == {
        *("do_sample", "max_length", "eos_token_id", "bos_token_id", "pad_token_id"),
        *("use_mtp", "use_cache", "cache_implementation", "cache_config", "max_cache_len"),
        *("renormalize_logits", "remove_invalid_values", "decoder_start_token_id", "low_memory"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        *("return_dict_in_generate", "is_assistant", "num_assistant_tokens", "prefill_chunk_size"),
        *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "speculation_type"),
        *("prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit"),
        *("assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
        *("compile_config", "disable_compile", "continuous_batching_config"),
        *("_from_model_config", "transformers_version"),
    }


@pytest.mark.parametrize("name", ["max_new_tokens", "stop_strings", "suppress_tokens"])
def test_errors_name_the_keys_of_the_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"generation_config.json: {name} .*none"):
        sampling_defaults(Path(model(tmp_path, **{name: {"a": 0}})))


class Doubling:
    """A tokenizer that puts token 0 before a text, whose letters are tokens."""

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [0 if letter == "^" else ord(letter) for letter in text]


class Ending:
    """A tokenizer that puts token 0 behind a text, whose letters are tokens."""

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        return [0 if letter == "^" else ord(letter) for letter in text] + [0] * add_special_tokens


def test_a_prompt_keeps_a_token_that_is_put_behind_it() -> None:
    tokenizer: Any = Ending()
    front_end = FrontEnd(tokenizer, max_model_len=64, name="none")
    with structlog.testing.capture_logs() as lines:
        assert front_end.encode("^^a")[1] == (0, 0, 97, 0)
    assert not lines


def test_an_empty_text_is_a_prompt_where_it_becomes_a_token() -> None:
    tokenizer: Any = Doubling()
    front_end = FrontEnd(tokenizer, max_model_len=64, name="none")
    assert front_end.encode("") == ("", (0,))
    assert front_end.encode({"prompt": ""}) == ("", (0,))
    with pytest.raises(RequestError, match="the prompt is empty"):
        front_end.encode({"prompt": "", "add_special_tokens": False})


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
