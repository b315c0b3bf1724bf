"""Whatever a model says, and wherever it is cut, can be sent back word for word as history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from paged_core.plugins.registry import Registry
from paged_plugins.server.http.endpoint import decode
from paged_plugins.server.translation.conversation import Conversation
from server.served import events
from server.streams import merged, message_of, named_events, response_of
from server.told import make_told, say
from server.told_client import ToldServer

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
MARKS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel|>", "analysis", "commentary"),
    *("final", " to=functions.f", "<|message|>", "<|call|>", "<|start|>", "<|constrain|>json"),
    *("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581begin\uff5c>"),
    *("<\uff5ctool\u2581sep\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>", "function"),
    *("<function=f>", "<parameter=a>", "</parameter>", "</function>", "```json\n", "\n```"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_end|>"),
    *("<|tool_call_argument_begin|>", "<arg_key>a</arg_key>", "<arg_value>", "</arg_value>"),
    *("```tool_code\n", "<|python_start|>", "<|python_end|>", "[f(a=", "[f(", ")]", "f"),
)
SPECIALS = [each for each in MARKS if each[0] + each[-1] in ("<>", "[]")]
JSON = (
    *(
        '{"name": "f", "arguments": {',
        '{"name": "f", "parameters": {',
        '{"name": "',
        '"arguments":',
    ),
    *('"a": ', '"', '"x"', "{", "}", "[", "]", ",", ":", "}}", '"}}', "1", "-", "1.5e3", "null"),
    *("true", "True", "None", "'", "'b': ", "\\", '\\"', "\\d", "\\u", "\\u00e9", "\\ud83d"),
    *("\\ude00", "\\x41", "\n", "\t", "\r", "\0", " ", "\u2028", "\u4e16", "\U0001f600", "1e999"),
    *("NaN", "-Infinity", "9" * 5000, "[" * 200, '{"a":' * 200, "n" * 2000, '"name": ""'),
)
_DEEPSEEK = "<\uff5ctool\u2581call%s\u2581%s\uff5c>"
_BEGIN = _DEEPSEEK % ("s", "begin") + _DEEPSEEK % ("", "begin")
_END = _DEEPSEEK % ("", "end") + _DEEPSEEK % ("s", "end")
CALLS = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"a": %s}}</tool_call>',
    "mistral": '[TOOL_CALLS]f[ARGS]{"a": %s}',
    "llama3_json": '{"name": "f", "parameters": {"a": %s}}',
    "pythonic": "[f(a=%s)]",
    "llama4_pythonic": "<|python_start|>[f(a=%s)]<|python_end|>",
    "gemma": "```tool_code\nf(a=%s)\n```",
    "qwen3_coder": "<tool_call><function=f><parameter=a>\n%s\n</parameter></function></tool_call>",
    "glm4": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    '<|tool_call_argument_begin|>{"a": %s}<|tool_call_end|><|tool_calls_section_end|>',
    "deepseek_v3": _BEGIN + 'function<\uff5ctool\u2581sep\uff5c>f\n```json\n{"a": %s}\n```' + _END,
    "deepseek_v31": _BEGIN + 'f<\uff5ctool\u2581sep\uff5c>{"a": %s}' + _END,
    "gpt_oss": '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": %s}<|call|>',
    "an older mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"a": %s}}]',
    "text": "%s",
}
"""Calls by the parser that reads them."""
SHORT = "{{ messages | tojson }}"
"""Template that is compiled fast, and shows all that it is told."""
TOOLS = {"name": "f", "description": "does", "parameters": {"properties": {"a": {}}}}


def drawn_text(drawn: Random, parser: str) -> str:
    """Return a text that a model might write, and that a parser might read."""
    pieces = "".join(drawn.choices(MARKS + JSON, k=drawn.randint(0, 8)))
    call = CALLS[parser if drawn.random() < 0.6 else drawn.choice(list(CALLS))] % pieces
    before = drawn.choice(("", "", "<think>why</think>", "<think>", "so "))
    return before + call + drawn.choice(("", "", "\n", call))


def chat_of(text: str) -> Any:
    """Return the answer that the chunks of a stream make."""
    *chunks, done = events(text)
    assert done == "[DONE]"
    made: dict[str, Any] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        choice["message"] = choice.pop("delta")
        merged(made, choice)
    return {"choices": [made]}


def chat_turn(found: Any) -> Any:
    message = found["choices"][0]["message"]
    return [
        message,
        *(
            {"role": "tool", "tool_call_id": each["id"], "content": "done"}
            for each in message.get("tool_calls") or ()
        ),
    ]


def messages_turn(found: Any) -> Any:
    content = found["content"]
    given: list[Any] = [
        {"type": "tool_result", "tool_use_id": each["id"], "content": "done"}
        for each in content
        if each["type"] == "tool_use"
    ]
    given.append({"type": "text", "text": "so?"})
    return [{"role": "assistant", "content": content}, {"role": "user", "content": given}]


def responses_turn(found: Any) -> Any:
    given = [
        {"type": "function_call_output", "call_id": each["call_id"], "output": "done"}
        for each in found["output"]
        if each["type"] == "function_call"
    ]
    return [*found["output"], *given]


def said_in(found: Any) -> Any:
    """Return what an answer of chat says."""
    (choice,) = found["choices"]
    message = choice["message"]
    calls = [each["function"] for each in message.get("tool_calls") or ()]
    thoughts = message.get("reasoning_content") or None
    return message.get("content") or None, thoughts, calls, choice["finish_reason"]


def arguments(found: Any) -> list[str]:
    """Return the arguments of all calls, in any of the APIs, as JSON."""
    if "choices" in found:
        calls = found["choices"][0]["message"].get("tool_calls") or ()
        return [each["function"]["arguments"] for each in calls]
    if "output" in found:
        return [each["arguments"] for each in found["output"] if each["type"] == "function_call"]
    return [json.dumps(each["input"]) for each in found["content"] if each["type"] == "tool_use"]


def whole_message(found: Any) -> Any:
    """Return a message that a stream made, with inputs as clients read them."""
    for each in found["content"]:
        if each["type"] == "tool_use":
            each["input"] = json.loads(each["input"])
    return found


Turn = Callable[[Any], Any]
APIS: dict[str, tuple[Any, str, str, Any, Turn, Turn]] = {
    CHAT: (
        [{"type": "function", "function": TOOLS}],
        "messages",
        "max_tokens",
        "stop",
        chat_turn,
        chat_of,
    ),
    MESSAGES: (
        [{"name": "f", "description": "does", "input_schema": TOOLS["parameters"]}],
        "messages",
        "max_tokens",
        "stop_sequences",
        messages_turn,
        lambda text: whole_message(message_of([event for _, event in named_events(text)])),
    ),
    RESPONSES: (
        [{"type": "function", **TOOLS}],
        "input",
        "max_output_tokens",
        "stop",
        responses_turn,
        lambda text: response_of([event for _, event in named_events(text)]),
    ),
}


async def check(
    server: ToldServer, path: str, text: str, most: int, stops: list[str], drawn: Random
) -> None:
    """Check that what is said, whole or streamed, is sent back, all of it or what has come."""
    tools, conversation, limit, stop, turn, streamed = APIS[path]
    begun: list[Any] = [{"role": "user", "content": say(text)}]
    asked = {"tools": tools, conversation: begun, limit: most, stop: stops}
    streams = drawn.random() < 0.5
    status, found = await server.ask(path, {**asked, "stream": streams})
    assert status == 200, found
    if streams:
        found = streamed(found)
        if path == CHAT:
            whole = (await server.ask(path, asked))[1]
            assert said_in(whole) == said_in(found)
    for each in arguments(found):
        assert isinstance(json.loads(each, parse_constant=pytest.fail), dict)
    history = turn(found) if drawn.random() < 0.7 else cut_short(turn(found), drawn)
    sent = [*begun, *history, {"role": "user", "content": say("yes")}]
    status, again = await server.ask(path, {"tools": tools, limit: 9, conversation: sent})
    assert status == 200, (found, again)


def cut_short(history: list[Any], drawn: Random) -> list[Any]:
    """Return what a client has of calls whose stream it has left."""
    for each in history:
        for call in (each, *(called["function"] for called in each.get("tool_calls") or ())):
            if "arguments" in call:
                call["arguments"] = call["arguments"][: drawn.randint(0, len(call["arguments"]))]
    return history


def check_many(folder: Path, seed: int, count: int) -> None:
    """Check texts with all parsers, where marks are special tokens and where they are not."""
    drawn, registry, folders = (
        Random(seed),
        Registry.discover(),
        (folder / "text", folder / "token"),
    )
    for each, specials in zip(folders, ((), SPECIALS), strict=True):
        each.mkdir()
        make_told(each, specials, SHORT)
    assert set(registry.of("tool_parser")) <= set(CALLS)
    servers = [
        (tool, ToldServer(registry, each, drawn, tool_parser=tool, reasoning_parser=reasoning))
        for tool in registry.of("tool_parser")
        for reasoning in registry.of("reasoning_parser")
        for each in folders
    ]

    async def run() -> None:
        for number in range(count):
            tool, server = servers[number % len(servers)]
            text = drawn_text(drawn, tool)
            most = drawn.choice((drawn.randint(1, 40), len(text.encode()) + 1))
            stops = drawn.choices(("}", '"', "a", ":"), k=drawn.choice((0, 0, 1)))
            for path in APIS:
                await check(server, path, text, most, stops, drawn)

    asyncio.run(run())


def test_what_follows_a_call_is_a_part_of_its_message() -> None:
    made = Conversation()
    made.say("assistant", "a")
    made.call("1", "f", "{}")
    made.say("assistant", "b")
    made.think("why")
    made.give_result("1", "done")
    made.say("assistant", "c")
    first, result, last = made.messages
    assert (first.content, first.reasoning_content, result.name) == ("ab", "why", "f")
    assert (result.role, last.content, last.tool_calls) == ("tool", "c", None)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb'"a\ud83d"', "a\ufffd"),
        (rb'"\ude00 \uD83D\uDE00"', "\ufffd \U0001f600"),
        (rb'"\\ud83d\ud83d\n"', "\\ud83d\ufffd\n"),
    ],
    ids=["first", "second", "escaped"],
)
def test_half_a_surrogate_pair_is_read(written: bytes, read: str) -> None:
    assert decode(msgspec.json.Decoder(Any), written) == read


@pytest.mark.heavy
def test_what_is_sent_can_be_sent_back(tmp_path: Path) -> None:
    check_many(tmp_path, 0, 120)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 11))
def test_twenty_thousand_texts_can_be_sent_back(tmp_path: Path, seed: int) -> None:
    check_many(tmp_path, seed, 2_000)
