"""Answers as each family writes them, with marks that are special tokens, become calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from paged_core.plugins.registry import Registry
from paged_plugins.server.parsers.tool_parser import CallBegins
from server.served import Served
from server.test_sent_back import CHAT, chat_of
from server.told import make_told, say, told_registry, told_settings
from server.told_client import ToldServer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"properties": {"city": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
]
CALL = {"city": "Oslo", "n": 2}
JSON = json.dumps(CALL)
HERMES = f'<tool_call>{{"name": "f", "arguments": {JSON}}}</tool_call>'
DEEPSEEK = [
    f"<\uff5ctool\u2581{each}\uff5c>"
    for each in ("calls\u2581begin", "call\u2581begin", "sep", "call\u2581end", "calls\u2581end")
]
HARMONY = ("channel", "message", "start", "constrain", "end", "call", "return")
KIMI = [f"<|tool_call{each}|>" for each in ("s_section_begin", "_begin", "_argument_begin", "_end")]
FAMILIES: Mapping[str, tuple[str, list[str]]] = {
    "hermes": (f"<think>why</think>\n\nso {HERMES}", ["<think>", "</think>", "<tool_call>"]),
    "mistral": (f"<think>why</think>so [TOOL_CALLS]f[ARGS]{JSON}", ["[TOOL_CALLS]", "[ARGS]"]),
    "qwen3_coder": (
        "<think>why</think>so <tool_call><function=f><parameter=city>\nOslo\n</parameter>"
        "<parameter=n>\n2\n</parameter></function></tool_call>",
        ["<think>", "</think>", "<tool_call>", "</tool_call>"],
    ),
    "glm4": (
        "<think>why</think>so <tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>n</arg_key>\n<arg_value>2</arg_value></tool_call>",
        ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    ),
    "kimi_k2": ("<think>why</think>so {}{}functions.f:0{}%s{}".format(*KIMI) % JSON, KIMI),
    "deepseek_v3": (
        "<think>why</think>so {}{}function{}f\n```json\n%s\n```{}{}".format(*DEEPSEEK) % JSON,
        DEEPSEEK,
    ),
    "gemma": ("<think>why</think>so ```tool_code\nf(city='Oslo', n=2)\n```", ["<think>"]),
    "gpt_oss": (
        "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "so <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
        f"<|message|>{JSON}<|call|>",
        [f"<|{each}|>" for each in HARMONY],
    ),
}


def answers(folder: Path, specials: list[str], text: str, **options: Any) -> list[Any]:
    """Return the messages of an answer, whole and from its stream."""

    async def run() -> list[Any]:
        server = ToldServer(Registry.discover(), folder, Random(0), **options)
        told = {"role": "user", "content": say(text)}
        asked = {"messages": [told], "tools": TOOLS, "max_tokens": 999}
        whole = (await server.ask(CHAT, asked))[1]
        streamed = chat_of((await server.ask(CHAT, {**asked, "stream": True}))[1])
        return [each["choices"][0]["message"] for each in (whole, streamed)]

    make_told(folder, specials)
    return asyncio.run(run())


def parts(message: Any) -> tuple[str, str, list[Any]]:
    """Return the thoughts, the text and the arguments of a message."""
    calls = message.get("tool_calls") or ()
    return (
        message.get("reasoning_content") or "",
        message.get("content") or "",
        [json.loads(each["function"]["arguments"]) for each in calls],
    )


@pytest.mark.parametrize("is_special", [True, False], ids=["special", "ordinary"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_read(family: str, is_special: bool, tmp_path: Path) -> None:
    text, marks = FAMILIES[family]
    reasoning = "gpt_oss" if family == "gpt_oss" else "qwen3"
    options = {"tool_parser": family, "reasoning_parser": reasoning}
    for message in answers(tmp_path, marks if is_special else [], text, **options):
        thoughts, content, calls = parts(message)
        assert (thoughts, content.strip(), calls) == ("why", "so", [CALL])


WHERE = {
    "thoughts that do not end": (f"<think>why {HERMES}", ("why ", "", [CALL])),
    "several": (f"<think>why {HERMES}\n{HERMES}\n", ("why ", "", [CALL, CALL])),
    "thoughts that end": (f"<think>a {HERMES} b</think>so", (f"a {HERMES} b", "so", [])),
    "both": (f"<think>a {HERMES}</think>{HERMES}", (f"a {HERMES}", "", [CALL])),
    "none": ("<think>why <tool_call> or <tool_", ("why <tool_call> or <tool_", "", [])),
}


@pytest.mark.parametrize("where", WHERE)
def test_a_call_in_thoughts_that_do_not_end_is_read(where: str, tmp_path: Path) -> None:
    text, expected = WHERE[where]
    options = {"tool_parser": "hermes", "reasoning_parser": "qwen3"}
    found = answers(tmp_path, ["<think>", "</think>", "<tool_call>"], text, **options)
    assert list(map(parts, found)) == [expected] * 2


TYPES: Mapping[str, tuple[Any, str, Any]] = {
    "text": ({"type": "string"}, "17", "17"),
    "lines": ({"type": "string"}, "\na\n\n", "a\n"),
    "JSON in a text": ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
    "whole number": ({"type": "integer"}, "17", 17),
    "number": ({"type": "number"}, "17", 17),
    "Python": ({"type": "boolean"}, "True", True),
    "no value or a text": ({"type": ["string", "null"]}, "None", None),
    "either": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "17", "17"),
    "by reference": ({"$ref": "#/$defs/word"}, "17", "17"),
    "list": ({"type": "array"}, "['a', (1, None)]", ["a", [1, None]]),
    "object": ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
    "of a list": ({"enum": ["1", "2"]}, "1", "1"),
    "anything": ({}, "[1, 2] and so on", "[1, 2] and so on"),
    "no number": ({"type": "integer"}, "seventeen days", "seventeen days"),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("family", ["qwen3_coder", "glm4"])
def test_a_value_between_tags_has_the_type_of_its_schema(family: str, kind: str) -> None:
    schema, written, value = TYPES[kind]
    made = Registry.discover().get("tool_parser", family)
    parser = made.load()(made.settings.model_validate({})).parser(
        {"f": {"properties": {"a": schema}, "$defs": {"word": {"type": "string"}}}}
    )
    text = (
        f"<tool_call><function=f><parameter=a>{written}</parameter></function></tool_call>"
        if family == "qwen3_coder"
        else f"<tool_call>f<arg_key>a</arg_key><arg_value>{written}</arg_value></tool_call>"
    )
    expected = written if family == "glm4" and kind == "lines" else value
    for cut in (1, 7, len(text)):
        pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
        found = [part for piece in pieces for part in parser.feed(piece)]
        assert isinstance(found.pop(0), CallBegins)
        assert json.loads("".join(part.text for part in found)) == {"a": expected}


HARMONY = (
    "{% for message in messages %}<|start|>{{ message.role }}<|message|>{{ message.content }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
FINAL = '<|channel|>final<|message|>{"a": 17}'
THOUGHTS = "<|channel|>analysis<|message|>why<|start|>assistant"
FORCED: Mapping[str, tuple[str, str, dict[str, Any], tuple[str, str, list[Any]]]] = {
    "hermes": (
        "hermes",
        f'<tool_call>\n{{"name": "f", "arguments": {JSON}}}\n</tool_call>',
        {"tools": TOOLS, "tool_choice": "required"},
        ("", "", [CALL]),
    ),
    "gpt_oss": (
        "gpt_oss",
        f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{JSON}",
        {"tools": TOOLS, "tool_choice": "required"},
        ("", "", [CALL]),
    ),
    "form beside tools": (
        "gpt_oss",
        FINAL,
        {"tools": TOOLS, "response_format": FORM},
        ("", '{"a": 17}', []),
    ),
    "form": (
        "gpt_oss",
        THOUGHTS + FINAL,
        {"response_format": FORM},
        ("why", '{"a": 17}', []),
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("case", FORCED)
def test_a_forced_answer_has_marks_as_special_tokens(case: str, tmp_path: Path) -> None:
    family, text, asked, expected = FORCED[case]
    marks = [*FAMILIES["gpt_oss"][1], "<tool_call>", "</tool_call>"]
    template = {"template": HARMONY} if family == "gpt_oss" else {}
    folder = make_told(tmp_path, marks, **template)
    settings = {**told_settings(folder), "tool_parser": family}
    with Served(registry=told_registry(), **settings) as served:
        told = {"messages": [{"role": "user", "content": say(text)}], "return_token_ids": True}
        status, found, *_ = served.ask("POST", CHAT, {**told, **asked, "max_tokens": 200})
    assert status == 200, found
    (choice,) = found["choices"]
    assert parts(choice["message"]) == expected
    assert choice["token_ids"][0] > 255, "the first mark is spelled in bytes"
