"""Answers that are told: where they stop, and the log-probabilities of their tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from paged_core.plugins.registry import Registry
from server.told import make_told, say
from server.told_client import ToldServer

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
THOUGHT = "<think>so: x</think>then: y"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> ToldServer:
    folder = make_told(tmp_path_factory.mktemp("told"), ["<|eot|>"])
    return ToldServer(Registry.discover(), folder, Random(0), reasoning_parser="qwen3")


def asked(told: ToldServer, path: str, text: str, **body: Any) -> Any:
    messages = [{"role": "user", "content": say(text)}]
    status, found = asyncio.run(told.ask(path, {"messages": messages, "max_tokens": 99, **body}))
    assert status == 200, found
    return found


@pytest.mark.parametrize(
    ("text", "stop", "more", "thoughts", "content"),
    [
        (THOUGHT, ":", {}, "so: x", "then"),
        (THOUGHT, ":", {"stop_in_reasoning": True}, "so", ""),
        (THOUGHT, "x</think>th", {}, "so: x", "then: y"),
        ("so: x", ":", {}, None, "so"),
        ("<think>a<|eot|></think>b<|eot|>c", "<|eot|>", {}, "a", "b"),
    ],
    ids=["answer", "asked for", "across", "no thoughts", "special"],
)
def test_a_stop_string_ends_the_answer_and_not_the_thoughts(
    told: ToldServer, text: str, stop: str, more: Any, thoughts: Any, content: str
) -> None:
    (choice,) = asked(told, CHAT, text, stop=[stop], **more)["choices"]
    message = choice["message"]
    assert (message.get("reasoning"), message["content"]) == (thoughts, content)
    assert choice["finish_reason"] == "stop"
    found = asked(told, MESSAGES, text, stop_sequences=[stop], **more)
    shown = "".join(each.get("text", "") for each in found["content"])
    assert (shown, found["stop_sequence"]) == (content, choice.get("stop_reason"))


def test_a_stop_string_ends_the_channel_of_the_answer(tmp_path: Path) -> None:
    folder = make_told(tmp_path, template="{{ messages | tojson }}<|start|>assistant")
    told = ToldServer(Registry.discover(), folder, Random(0), reasoning_parser="gpt_oss")
    thought, said = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
    text = f"{thought}so: x<|end|><|start|>assistant{said}then: y<|return|>"
    (choice,) = asked(told, CHAT, text, stop=[":"])["choices"]
    message = choice["message"]
    assert (message["reasoning"], message["content"]) == ("so: x", "then")
    assert choice["stop_reason"] == ":"
