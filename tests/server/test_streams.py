"""Events of streams, put together, are the whole answer; each is as the OpenAPI document says."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from paged_plugins.server.openai.protocol import ChatChunk, Completion
from server.served import SCHEMA, Served, events
from server.streams import merged

pytestmark = pytest.mark.heavy

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "What is a block table?"
SAID: Any = [{"role": "user", "content": PROMPT}]
BEGUN: Any = [*SAID, {"role": "assistant", "content": "A block"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
ASKED: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"max_tokens": 24}),
    (COMPLETIONS, {"prompt": [PROMPT, "Hello"], "n": 2, "temperature": 1, "seed": 3}),
    (COMPLETIONS, {"logprobs": 2}),
    (COMPLETIONS, {"echo": True, "logprobs": 0, "max_tokens": 4}),
    (COMPLETIONS, {"prompt": "é€😀 is", "echo": True, "logprobs": 0, "max_tokens": 4}),
    (COMPLETIONS, {"prompt": [1, 317, 285, 0], "echo": True, "logprobs": 0, "max_tokens": 2}),
    (COMPLETIONS, {"echo": True, "max_tokens": 0}),
    (COMPLETIONS, {**IDS, "logprobs": 1}),
    (COMPLETIONS, {"structured_outputs": {"regex": "abcdef"}, "stop": ["e"]}),
    (
        COMPLETIONS,
        {"echo": True, "logprobs": 1, "n": 2, "temperature": 1, "seed": 3, "stop": ["a"], **IDS},
    ),
    (CHAT, {}),
    (CHAT, {**IDS, "max_tokens": 5}),
    (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": 6}),
    (CHAT, {"messages": BEGUN, "continue_final_message": True, "echo": True, "max_tokens": 8}),
    (CHAT, {"response_format": FORMAT, "temperature": 1.3, "seed": 3}),
    (CHAT, {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}),
    (CHAT, {"tools": TOOLS, "tool_choice": "required", "n": 2, "logprobs": True, "seed": 3}),
    (CHAT, {"tools": TOOLS, "tool_choice": "required", "max_tokens": 3}),
    (CHAT, {"tools": TOOLS, "tool_choice": "required", "max_tokens": 12}),
]


@pytest.mark.parametrize(("path", "options"), ASKED, ids=str)
def test_a_stream_is_the_whole_answer(served: Served, path: str, options: dict[str, Any]) -> None:
    prompt = {"prompt": PROMPT} if path == COMPLETIONS else {"messages": SAID, "max_tokens": 200}
    body = {**prompt, "temperature": 0, **options}
    whole = served.ask("POST", path, body)[1]
    usage = {"stream_options": {"include_usage": True}}
    text = served.ask("POST", path, {**body, "stream": True, **usage})[1]
    *chunks, last, done = events(text)
    assert done == "[DONE]"
    for each in (*chunks, last):
        msgspec.convert(each, Completion if path == COMPLETIONS else ChatChunk)
    assert {each["id"] for each in chunks} == {last["id"]}
    assert {each["usage"] for each in chunks} == {None}
    assert last["choices"] == []
    counts = {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    assert counts.items() <= whole["usage"].items()
    made: dict[int, dict[str, Any]] = {}
    for each in chunks:
        (choice,) = each["choices"]
        if path == CHAT and not choice["delta"].keys() & {"tool_calls", "reasoning"}:
            assert choice["delta"]["content"] is not None, "clients add it without looking"
        choice["message"] = choice.pop("delta", None)
        merged(made.setdefault(choice["index"], {}), choice)
    assert sorted(made) == [choice["index"] for choice in whole["choices"]]
    for choice in whole["choices"]:
        assert said(made[choice["index"]]) == said(choice)
    if path == CHAT and "return_token_ids" in options:
        assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]


def said(value: Any) -> Any:
    """Return what a choice says: without empty values, and ids that are drawn for each answer."""
    if isinstance(value, list):
        return [said(each) for each in value]
    if not isinstance(value, dict):
        return round(value, 3) if isinstance(value, float) else value
    if "arguments" in value:
        value = {**value, "arguments": value["arguments"] or "{}"}
    ids = ("id", "index") if "function" in value else ()
    kept = {name: said(each) for name, each in value.items() if name not in ids}
    return {name: each for name, each in kept.items() if each not in (None, "", {}, [])}


def test_usage_in_every_chunk_is_an_option_of_usage(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": PROMPT, "stream": True, "stream_options": options, "max_tokens": 5}
    *chunks, usage, done = events(served.ask("POST", COMPLETIONS, body)[1])
    counts = [each["usage"]["completion_tokens"] for each in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == usage["usage"]["completion_tokens"] == 5
    assert done == "[DONE]"
    del options["include_usage"]
    *chunks, done = events(served.ask("POST", COMPLETIONS, body)[1])
    assert all("usage" not in each and each["choices"] for each in chunks)


def test_arguments_of_a_call_come_as_they_are_generated(served: Served) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    body = {"messages": SAID, "tools": TOOLS, "tool_choice": named, "stream": True, "seed": 3}
    chunks = events(served.ask("POST", CHAT, {**body, "max_tokens": 200})[1])[:-1]
    calls = [call for each in chunks for call in each["choices"][0]["delta"].get("tool_calls", ())]
    grown = [call["function"].get("arguments", "") for call in calls]
    assert len([text for text in grown if text]) > 3
    assert json.loads("".join(grown)).keys() == {"city", "degrees"}
