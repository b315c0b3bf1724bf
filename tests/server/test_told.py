"""The checkpoint that says what it is told says any text, cut or not, in a thread and a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.served import Served, ask, events, serve_process
from server.told import (
    DEFAULT,
    END,
    make_told,
    say,
    told_environ,
    told_options,
    told_registry,
    told_settings,
)

pytestmark = pytest.mark.heavy

CHAT = "/v1/chat/completions"
SPECIALS = ["<tool_call>", "</tool_call>"]
SCHEMA = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_told(tmp_path_factory.mktemp("told"), SPECIALS)


@pytest.fixture(scope="module")
def told(folder: Path) -> Iterator[Served]:
    with Served(registry=told_registry(), **told_settings(folder)) as served:
        yield served


def choice(found: Any) -> Any:
    return found[1]["choices"][0]


@pytest.mark.parametrize(
    "text", ["", " a  é\n\\u00e9 \U0001f600 ", "1" * 900], ids=["none", "any", "long"]
)
def test_any_text_is_said_as_it_is_told(told: Served, text: str) -> None:
    asked = {"messages": [{"role": "user", "content": f"Now {say(text)}, please."}]}
    found = choice(told.ask("POST", CHAT, asked))
    assert (found["message"]["content"], found["finish_reason"]) == (text, "stop")
    found = choice(told.ask("POST", CHAT, {**asked, "max_tokens": 5, "n": 2}))
    assert found["message"]["content"] == text.encode()[:5].decode("utf-8", "replace")


def test_forms_and_special_tokens_are_as_with_any_model(told: Served) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    for hides, shown in ((True, call[11:-12]), (False, call)):
        asked: Any = {"prompt": say(call), "skip_special_tokens": hides, "max_tokens": 99}
        assert choice(told.ask("POST", "/v1/completions", asked))["text"] == shown
    asked = {"prompt": say('{"a": 17}'), "structured_outputs": {"json": SCHEMA}, "max_tokens": 99}
    assert choice(told.ask("POST", "/v1/completions", asked))["text"] == '{"a": 17}'


def test_texts_of_tokens_are_the_same_whole_and_streamed(told: Served) -> None:
    asked: Any = {"prompt": say("h\u00e9 \u20ac!"), "logprobs": 3, "max_tokens": 99}
    whole = choice(told.ask("POST", "/v1/completions", asked))
    text = told.ask("POST", "/v1/completions", {**asked, "stream": True})[1]
    parts = [each["choices"][0]["logprobs"] for each in events(text)[:-1]]
    for name in ("tokens", "text_offset"):
        assert [one for part in parts for one in part[name]] == whole["logprobs"][name]
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"] + END
    for token, top in zip(
        whole["logprobs"]["tokens"], whole["logprobs"]["top_logprobs"], strict=True
    ):
        assert len(top) == 3
        assert top[token] == max(top.values())


@pytest.mark.long
def test_a_process_serves_it(folder: Path) -> None:
    with serve_process(*told_options(folder), **told_environ(folder)) as served:
        asked = {"messages": [{"role": "user", "content": "hi"}]}
        assert choice(ask(served.port(), "POST", CHAT, asked))["message"]["content"] == DEFAULT
