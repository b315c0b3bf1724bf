"""Which parsers a model gets by what its chat template shows."""

from __future__ import annotations

from typing import Any

import pytest

from paged_backends.text.chat_template import ChatTemplate
from paged_core.errors import PluginError
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class
from paged_plugins.server.parsers.choice import Parsers
from paged_plugins.server.parsers.reasoning import ThinkFormat
from paged_plugins.server.parsers.reasoning_parser import ReasoningParser
from paged_plugins.server.parsers.tool_formats import HermesFormat
from paged_plugins.server.parsers.tool_parser import Text, ToolParser
from unit.faulty_settings import registry_of

CALLS = (
    "{%% for m in messages %%}{{ m.content }}"
    "{%% for call in m.tool_calls or [] %%}%s{%% endfor %%}{%% endfor %%}"
)
HERMES = CALLS % (
    '<tool_call>\n{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
)
MISTRAL = CALLS % '[TOOL_CALLS] [{"name": "{{ call.function.name }}"}]'
LLAMA = CALLS % (
    '{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}'
)
PYTHONIC = CALLS % (
    "[{{ call.function.name }}("
    "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v | tojson }}{% endfor %})]"
)
NAME, GIVEN = "{{ call.function.name }}", "{{ call.function.arguments | tojson }}"
BEGIN, SEP = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581sep\uff5c>"
MARKED = {
    "MistralFormat": f"[TOOL_CALLS]{NAME}[ARGS]{GIVEN}",
    "Qwen3CoderFormat": f"<tool_call>\n<function={NAME}>\n</function>\n</tool_call>",
    "Glm4Format": f"\n<tool_call>{NAME}\n</tool_call>",
    "KimiK2Format": f"<|tool_call_begin|>{{{{ call.id }}}}<|tool_call_argument_begin|>{GIVEN}",
    "DeepseekV3Format": f"{BEGIN}function{SEP}{NAME}\n```json\n{GIVEN}\n```",
    "DeepseekV31Format": f"{BEGIN}{NAME}{SEP}{{{{ call.function.arguments + '' }}}}",
    "GptOssFormat": f"<|start|>assistant to=functions.{NAME}<|channel|>commentary json",
    "Llama4PythonicFormat": f"<|python_start|>[{NAME}(place=",
}
"""Calls as a template of the family writes them, by format."""
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}"
    "{% endfor %}"
)
THINKS = PLAIN + "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
HARMONY = PLAIN + "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
REASONS = (
    "{% for m in messages %}{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}"
    "\n</think>\n{% endif %}{{ m.content }}{% endfor %}"
)


class Tokenizer:
    """Has a chat template and nothing else."""

    def __init__(self, template: str | None) -> None:
        self._template = ChatTemplate({"default": template} if template else {}, {})

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, **options: Any) -> str:
        assert not tokenize
        return self._template.render(conversation, **{"add_generation_prompt": False, **options})


def parsers(template: str | None, **settings: Any) -> Parsers:
    registry = Registry.discover()
    return Parsers(settings_class(registry)(**settings), registry, lambda: Tokenizer(template))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (HERMES, "HermesFormat"),
        (MISTRAL, "MistralFormat"),
        (LLAMA, "Llama3JsonFormat"),
        (PYTHONIC, "PythonicFormat"),
        *((CALLS % written, name) for name, written in MARKED.items()),
        (PLAIN, "NoneType"),
        (STRICT, "NoneType"),
        (None, "NoneType"),
    ],
    ids=lambda each: each if str(each).endswith(("Format", "Type")) else "",
)
def test_the_tool_parser_is_what_the_template_shows(template: str | None, name: str) -> None:
    assert type(parsers(template).tools).__name__ == name
    expected = "HermesFormat" if name == "NoneType" else name
    assert type(parsers(template).forced_tools).__name__ == expected


@pytest.mark.parametrize(
    ("template", "name"),
    [
        *((THINKS, "ThinkFormat"), (REASONS, "ThinkFormat"), (HARMONY, "HarmonyReasoningFormat")),
        *((PLAIN, "NoneType"), (None, "NoneType")),
    ],
)
def test_the_reasoning_parser_is_what_the_template_shows(template: str | None, name: str) -> None:
    assert type(parsers(template).reasoning).__name__ == name


def test_settings_name_a_parser_whatever_the_template_shows() -> None:
    named = parsers(HERMES, tool_parser="pythonic", reasoning_parser="deepseek_r1")
    assert type(named.tools).__name__ == "PythonicFormat"
    assert type(named.reasoning).__name__ == "DeepseekR1Format"
    assert named.is_reasoning_named


def test_a_form_begins_after_thoughts_that_are_certain() -> None:
    thinks = parsers(THINKS).reasoning
    assert thinks is not None
    for prompt, surely, expected in (
        ("question<think>\n", True, "</think>"),
        ("question", True, None),
        ("question", False, "</think>"),
        ("question<think>\n\n</think>\n\n", False, None),
    ):
        assert thinks.ends_with(prompt, surely=surely) == expected


def _former(self: object, text: str, is_last: bool, /) -> list[Text]:
    return []


@pytest.mark.parametrize("member", ["parser", "feed"])
@pytest.mark.parametrize(
    ("slot", "made", "reader"),
    [("tool_parser", HermesFormat, ToolParser), ("reasoning_parser", ThinkFormat, ReasoningParser)],
)
def test_a_named_parser_of_another_interface_is_refused_before_it_is_needed(
    slot: str, made: type, reader: type, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = type("Old", (reader,), {"feed": _former, "end": lambda self: []})
    asked = _former if member == "parser" else lambda self, _: old()
    registry = registry_of(slot, Former)
    monkeypatch.setattr(f"{__name__}.Former", type("Former", (made,), {"parser": asked}))
    settings = settings_class(registry)(**{slot: "faulty"})
    with pytest.raises(PluginError, match=rf"^{slot} 'faulty'.*\b{member}\(.*'is_last'.*{slot}.md"):
        Parsers(settings, registry, lambda: None)


class Former:
    """A parser of an earlier interface, which a test puts in its place."""
