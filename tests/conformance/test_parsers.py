"""First-party parsers pass the conformance classes of their slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from paged_plugins.server.parsers.testing import (
    ReasoningParserConformance,
    ToolParserConformance,
)

F = {"a": 1, "b": "}"}
FORMS = {
    "an object": ', "arguments": {"a": 1, "b": "}"}',
    "a text": r', "arguments": "{\"a\": 1, \"b\": \"}\"}"',
    "a fenced text": r', "arguments": "```json\n{\"a\": 1, \"b\": \"}\"}\n```"',
    "parameters": ', "parameters": {"a": 1, "b": "}"}',
}
NO_FORMS = {"null": ', "arguments": null', "missing": "", "an empty text": ', "arguments": ""'}
SIBLINGS: Mapping[str, Sequence[tuple[str, Any]]] = {
    around.replace("CALL", f'{{"name": "f"{form}}}'): [("f", given)] * around.count("CALL")
    for around in (
        *("CALL", "```json\nCALL\n```", "```\nCALL```", "[CALL, CALL]", "```json\n[CALL]\n```"),
        '{"id": "1", "type": "function", "function": CALL}',
    )
    for form, given in (
        *((each, F) for each in FORMS.values()),
        *((n, {}) for n in NO_FORMS.values()),
    )
}
"""Other forms in which models write calls as JSON."""


class TestHermes(ToolParserConformance):
    component = "hermes"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        '<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": "}\\""}]}}\n</tool_call>': [
            ("f", {"a": [1, {"b": '}"'}]})
        ],
    }
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        '<tool_call>{"arguments": {"x": -1.5e3}, "name": "f"}</tool_call>\n'
        '<tool_call>{"name": "weather"}</tool_call>\n': [("f", {"x": -1500.0}), ("weather", {})],
        '<tool_call>{"name": "other", "arguments": {}}': [("other", {})],
        **{f"<tool_call>{call}</tool_call>": calls for call, calls in SIBLINGS.items()},
    }
    broken = (
        "<tool_call>",
        "<tool_call>nothing</tool_call>",
        '<tool_call>{"name": "f", "arguments": 3}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "reason": ""}</tool_call>',
        "a <tool_cal",
    )


class TestLlama3Json(ToolParserConformance):
    component = "llama3_json"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        '{"name": "f", "parameters": {"a": 1}}': [("f", {"a": 1})],
    }
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; '
        '{"name": "weather", "parameters": {"b": null}}': [("f", {}), ("weather", {"b": None})],
        **SIBLINGS,
    }
    broken = (
        '{"name": "Bob", "age": 3}',
        '{"name": "other", "parameters": {}}',
        '{"a": {"name": "f", "parameters": {}}}',
        '{"name": "f", "parameters": [',
        "<|python_tag|>print(1)",
    )


class TestMistral(ToolParserConformance):
    component = "mistral"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, '
        '{"name": "weather", "arguments": {}}]': [("f", {"a": 1}), ("weather", {})],
    }
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        '[TOOL_CALLS] [{"id": "abc", "name": "f", "arguments": {}}] ': [("f", {})],
        **{f"[TOOL_CALLS]{call}": calls for call, calls in SIBLINGS.items()},
    }
    broken = ("[TOOL_CALLS] nothing", "[TOOL_CALLS][3]", "[TOOL_CALL")


class TestPythonic(ToolParserConformance):
    component = "pythonic"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        '[f(a=1, b="x", c=[true, null, -2.5], d={"k": [1, 2]}), weather()]': [
            ("f", {"a": 1, "b": "x", "c": [True, None, -2.5], "d": {"k": [1, 2]}}),
            ("weather", {}),
        ],
    }
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        '[f(a=1, b="x", c=[True, None, -2.5], d={"k": (1, 2)})]': [
            ("f", {"a": 1, "b": "x", "c": [True, None, -2.5], "d": {"k": [1, 2]}})
        ],
        "[f(), weather(city='Paris', here=true)]": [
            ("f", {}),
            ("weather", {"city": "Paris", "here": True}),
        ],
    }
    broken = (
        "[f(1)]",
        "[g(a=1)]",
        "[f(a=1)] and more",
        "[f(a=b)]",
        "[f(**{})]",
        "[f(a=1j)]",
        "[f(",
    )


class TestQwen3(ReasoningParserConformance):
    component = "qwen3"
    written: ClassVar[Mapping[tuple[str, str], tuple[str, str]]] = {
        ("", "Hello"): ("", "Hello"),
        ("", "<think>\nwhy\n</think>\n\nso </think> what"): ("why", "so </think> what"),
        ("", "\n<think>why"): ("why", ""),
        ("", "a <think> b </think>"): ("", "a <think> b </think>"),
        ("x<think>\n", "why\nnot\n</think>\n\nso"): ("why\nnot", "so"),
        ("<think>\n\n</think>\n\n", "so"): ("", "so"),
    }


class TestDeepseekR1(ReasoningParserConformance):
    component = "deepseek_r1"
    written: ClassVar[Mapping[tuple[str, str], tuple[str, str]]] = {
        ("", "why</think>so"): ("why", "so"),
        ("", "<think>why</think>so"): ("why", "so"),
        ("<think>\n\n</think>\n\n", "so"): ("", "so"),
    }


class TestNone(ReasoningParserConformance):
    component = "none"
    written: ClassVar[Mapping[tuple[str, str], tuple[str, str]]] = {
        ("", "<think>a</think>b"): ("", "<think>a</think>b")
    }
