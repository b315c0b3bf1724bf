"""First-party parsers pass the conformance classes of their slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from marks import long
from paged_plugins.server.parsers.testing import (
    ReasoningParserConformance,
    ToolParserConformance,
)

F = {"a": 1, "b": "}"}
FORMS = {
    "an object": ', "arguments": {"a": 1, "b": "}"}',
    "a text": r', "arguments": "{\"a\": 1, \"b\": \"}\"}"',
    "a text with a line break": ', "arguments": "{\\"a\\": 1,\n \\"b\\": \\"}\\"}"',
    "a fenced text": r', "arguments": "```json\n{\"a\": 1, \"b\": \"}\"}\n```"',
    "parameters": ', "parameters": {"a": 1, "b": "}"}',
}
NO_FORMS = {
    "null": ', "arguments": null',
    "None": ', "arguments": None',
    "missing": "",
    "an empty text": ', "arguments": ""',
}
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
BARE: Sequence[tuple[str, Any]] = (
    *(('{"a": 1}', {"a": 1}), (' {"a": 1} ', {"a": 1}), (r'"{\"a\": 1}"', {"a": 1})),
    *(("null", {}), ("{}", {}), ('""', {})),
)
"""Arguments alone."""
MISTRAL = ("[ARGS]", "[CALL_ID]123456789[ARGS]")
KIMI = "<|tool_call_begin|>functions.{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
WORK = ("test_the_work_grows_in_proportion_to_the_text",)
"""Cases that take the most time."""
SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")


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


@long(*WORK)  # as in `TestHermes`
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
        **{
            f"[TOOL_CALLS]f{mark}{form}": [("f", given)] for mark in MISTRAL for form, given in BARE
        },
        '[TOOL_CALLS]f[ARGS]{"a": 1}\n[TOOL_CALLS]weather[CALL_ID]0aB[ARGS] {}': [
            ("f", {"a": 1}),
            ("weather", {}),
        ],
    }
    written_in_tokens: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]weather[ARGS]{}': [("f", {"a": 1}), ("weather", {})]
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
        "[[f(a=1)]]",
        "[f(a=b)]",
        "[f(**{})]",
        "[f(a=1j)]",
        "[f(",
    )


PYTHON: Mapping[str, Sequence[tuple[str, Any]]] = {
    '[f(a=1, b="x"), weather()]': [("f", {"a": 1, "b": "x"}), ("weather", {})]
}


@long(*WORK)  # as in `TestPythonic`
class TestLlama4Pythonic(ToolParserConformance):
    component = "llama4_pythonic"
    written = PYTHON
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        f"<|python_start|>{text}<|python_end|>": calls for text, calls in PYTHON.items()
    }
    broken = ("<|python_start|>print(1)<|python_end|>", "[f(", "<|python_start|>[f(1)]", "<|pyth")


@long(*WORK)  # as in `TestPythonic`
class TestGemma(ToolParserConformance):
    component = "gemma"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        '```tool_code\nf(a=1, b="]\\"")\nweather()\n```': [
            ("f", {"a": 1, "b": ']"'}),
            ("weather", {}),
        ]
    }
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        **PYTHON,
        "```tool_code\nprint(f(a=1))\n```": [("f", {"a": 1})],
        "```tool_code\n[f(a=1), weather()]```\n": [("f", {"a": 1}), ("weather", {})],
        "```tool_code\nf()": [("f", {})],
        '```json\n{"name": "f", "parameters": {"a": 1}}\n```': [("f", {"a": 1})],
    }
    broken = ("```tool_code\nx = 1\n```", "```python\nf()\n```", "```tool_code\nf(\n```", "```tool")


class TestQwen3Coder(ToolParserConformance):
    component = "qwen3_coder"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n"
        '<parameter=b>\n{"x": ["</parameter"]}\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=weather>\n</function>\n</tool_call>": [
            ("f", {"a": 1, "b": {"x": ["</parameter"]}}),
            ("weather", {}),
        ]
    }
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        "<function=f><parameter=a>two words\n\n</parameter></function>": [
            ("f", {"a": "two words\n"})
        ],
        "<tool_call><function=f><parameter=a>True</parameter><parameter=b>{'x': (1, None)}"
        "</parameter></function></tool_call>": [("f", {"a": True, "b": {"x": [1, None]}})],
        **{f"<tool_call>{call}</tool_call>": calls for call, calls in SIBLINGS.items()},
    }
    broken = ("<tool_call>", "<tool_call>nothing</tool_call>", "<function=f>so", "<function=f")


@long(*WORK)  # as in `TestQwen3Coder`
class TestGlm4(ToolParserConformance):
    component = "glm4"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
        '<arg_value>{"x": ["</arg_value"]}</arg_value>\n</tool_call>\n'
        "<tool_call>weather\n</tool_call>": [
            ("f", {"a": 1, "b": {"x": ["</arg_value"]}}),
            ("weather", {}),
        ]
    }
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        "<tool_call>f<arg_key>a</arg_key><arg_value>two words\n</arg_value></tool_call>": [
            ("f", {"a": "two words\n"})
        ],
        "<tool_call>weather</tool_call>": [("weather", {})],
    }
    broken = ("<tool_call>", "<tool_call>nothing</tool_call>", "<tool_call>f\nso", "<tool_call>f")


@long(*WORK)  # as in `TestDeepseekV3`
class TestKimiK2(ToolParserConformance):
    component = "kimi_k2"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        SECTION[0] + KIMI.format("f:0", '{"a": 1}') + KIMI.format("weather:0", "{}") + SECTION[1]: [
            ("f", {"a": 1}),
            ("weather", {}),
        ]
    }
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        f"{SECTION[0]} {KIMI.format('other:12', ' {} ')}\n": [("other", {})],
        **{f"{SECTION[0]}{KIMI.format('f:1', form)}": [("f", given)] for form, given in BARE},
    }
    broken = (SECTION[0], f"{SECTION[0]}nothing{SECTION[1]}", KIMI.format("f", "3"), KIMI[:30])


def deepseek(text: str) -> str:
    """Marks of DeepSeek, written as ``{call begin}``."""
    for mark in ("calls begin", "calls end", "call begin", "call end", "sep"):
        written = f"<\uff5ctool {mark}\uff5c>".replace(" ", "\u2581")
        text = text.replace(f"{{{mark}}}", written)
    return text


WITH_TYPE = deepseek(
    '{calls begin}{call begin}function{sep}f\n```json\n{"a": "```"}\n```{call end}\n'
    "{call begin}function{sep}weather\n```json\n{}\n```{call end}{calls end}"
)
WITHOUT_TYPE = deepseek(
    '{calls begin}{call begin}f{sep}{"a": "```"}{call end}{call begin}weather{sep}{}{call end}'
    "{calls end}"
)
DEEPSEEK: Sequence[tuple[str, Any]] = [("f", {"a": "```"}), ("weather", {})]
DEEPSEEK_BROKEN = tuple(
    map(deepseek, ("{calls begin}", "{call begin}f{call end}", "{calls begin}{call begin}f{sep}3"))
)


class TestDeepseekV3(ToolParserConformance):
    component = "deepseek_v3"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {WITH_TYPE: DEEPSEEK}
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {WITHOUT_TYPE: DEEPSEEK}
    broken = DEEPSEEK_BROKEN


@long(*WORK)  # as in `TestDeepseekV3`, which reads both forms, too
class TestDeepseekV31(ToolParserConformance):
    component = "deepseek_v31"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {WITHOUT_TYPE: DEEPSEEK}
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {WITH_TYPE: DEEPSEEK}
    broken = DEEPSEEK_BROKEN


HARMONY = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'


class TestGptOss(ToolParserConformance):
    component = "gpt_oss"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {HARMONY: [("f", {"a": 1})]}
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {
        f"{HARMONY}<|call|><|start|>assistant to=functions.weather<|channel|>commentary json"
        "<|message|>{}<|call|>": [("f", {"a": 1}), ("weather", {})],
        ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>': [("f", {"a": 1})],
    }
    broken = (
        "<|channel|>final<|message|>so",
        "<|channel|>commentary to=functions.f",
        "<|channel|>commentary to=python<|message|>{}",
    )


class TestHarmony(ReasoningParserConformance):
    component = "gpt_oss"
    written: ClassVar[Mapping[tuple[str, str], tuple[str, str]]] = {
        ("", "Hello."): ("", "Hello."),
        ("x<|start|>assistant", "Hello."): ("", "Hello."),
        ("x<|start|>assistant", "<|channel|>analysis<|message|>why<|end|>"): ("why", ""),
        (
            "x<|start|>assistant",
            "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>analysis"
            "<|message|>not<|end|><|start|>assistant<|channel|>final<|message|>so<|return|>",
        ): ("why\nnot", "so"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "why<|end|>"): ("why", ""),
        ("<|start|>assistant<|channel|>final<|message|>", "so"): ("", "so"),
        (
            "<|start|>assistant",
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary"
            ' to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        ): (
            "",
            'I look.<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>',
        ),
        (
            "<|start|>assistant",
            " to=functions.f<|channel|>commentary json<|message|>{}",
        ): ("", "<|channel|>commentary to=functions.f<|message|>{}"),
        ("<|start|>assistant", "<|channel|>analysis to=python<|message|>1<|call|>"): ("1", ""),
    }


@long("test_the_work_grows_in_proportion_to_the_text")  # as in `TestDeepseekR1`
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
