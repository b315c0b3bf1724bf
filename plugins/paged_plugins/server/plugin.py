"""The plugin ``server``: engines as a service over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paged_core.plugins.component import Command, Component, ComponentSettings, Slot
from paged_core.plugins.hooks import hookimpl
from paged_plugins.server import settings

_COMPONENTS: Mapping[str, Sequence[tuple[type[ComponentSettings], str, str]]] = {
    "routes": (
        (
            settings.OpenAISettings,
            "openai.routes:OpenAIRoutes",
            "the API of OpenAI with vLLM's extras: models, completions, chat, tokens",
        ),
        (
            settings.ResponsesSettings,
            "responses.routes:ResponsesRoutes",
            "OpenAI's Responses API, without anything that is stored",
        ),
        (
            settings.AnthropicSettings,
            "anthropic.routes:AnthropicRoutes",
            "Anthropic's API: messages, and how many tokens they have",
        ),
        (
            settings.PageSettings,
            "page.routes:Page",
            "the page at /: a chat, and the engine as it works",
        ),
    ),
    "tool_parser": (
        (
            settings.HermesSettings,
            "parsers.tool_formats:HermesFormat",
            "<tool_call>{...}</tool_call>: Hermes, Qwen",
        ),
        (
            settings.Llama3JsonSettings,
            "parsers.tool_formats:Llama3JsonFormat",
            "an answer that is JSON: Llama 3.1 and 3.2",
        ),
        (
            settings.MistralSettings,
            "parsers.named_calls:MistralFormat",
            "[TOOL_CALLS][...], or [TOOL_CALLS]f[ARGS]{...}: Mistral",
        ),
        (
            settings.PythonicSettings,
            "parsers.pythonic:PythonicFormat",
            "[f(x=1)]: Llama 3.2 and others",
        ),
        (
            settings.Llama4PythonicSettings,
            "parsers.pythonic:Llama4PythonicFormat",
            "<|python_start|>[f(x=1)]<|python_end|>: Llama 4",
        ),
        (
            settings.GemmaSettings,
            "parsers.pythonic:GemmaFormat",
            "```tool_code blocks: Gemma 3",
        ),
        (
            settings.Qwen3CoderSettings,
            "parsers.tagged_calls:Qwen3CoderFormat",
            "<function=f><parameter=x>...: Qwen3-Coder",
        ),
        (
            settings.Glm4Settings,
            "parsers.tagged_calls:Glm4Format",
            "<tool_call>f<arg_key>x</arg_key>...: GLM 4.5",
        ),
        (
            settings.KimiK2Settings,
            "parsers.named_calls:KimiK2Format",
            "<|tool_call_begin|>functions.f:0...: Kimi K2",
        ),
        (
            settings.DeepseekV3Settings,
            "parsers.named_calls:DeepseekV3Format",
            "calls with a type and a fence: DeepSeek V3, R1",
        ),
        (
            settings.DeepseekV31Settings,
            "parsers.named_calls:DeepseekV31Format",
            "calls without either: DeepSeek V3.1",
        ),
        (
            settings.GptOssSettings,
            "parsers.harmony:GptOssFormat",
            "messages to functions.f: gpt-oss",
        ),
    ),
    "reasoning_parser": (
        (
            settings.Qwen3Settings,
            "parsers.reasoning:ThinkFormat",
            "<think>...</think>, where the model or the prompt writes it",
        ),
        (
            settings.DeepseekR1Settings,
            "parsers.reasoning:DeepseekR1Format",
            "thoughts first, up to </think>",
        ),
        (
            settings.GptOssReasoningSettings,
            "parsers.harmony:HarmonyReasoningFormat",
            "the channel analysis: gpt-oss",
        ),
        (
            settings.NoReasoningSettings,
            "parsers.reasoning:NoReasoningFormat",
            "all text is the answer",
        ),
    ),
}
"""Components without options, by slot: settings, factory and summary."""


@hookimpl
def paged_core_slots() -> Iterator[Slot]:
    yield Slot(
        "server",
        "paged_plugins.server.server:Server",
        "http",
        summary="how requests come in from outside",
        makeable=False,
    )
    yield Slot(
        "routes",
        "paged_plugins.server.routes:Routes",
        ("openai", "responses", "anthropic", "page"),
        many=True,
        summary="what the server answers",
        makeable=False,
    )
    yield Slot(
        "tool_parser",
        "paged_plugins.server.parsers.tool_parser:ToolFormat",
        "auto",
        auto=True,
        summary="how the model writes calls of tools; auto: as its chat template does",
        makeable=False,
    )
    yield Slot(
        "reasoning_parser",
        "paged_plugins.server.parsers.reasoning_parser:ReasoningFormat",
        "auto",
        auto=True,
        summary="how the model marks its thoughts; auto: as its chat template does",
        makeable=False,
    )


@hookimpl
def paged_core_components() -> Iterator[Component]:
    yield Component(
        "server",
        settings.HttpSettings,
        "paged_plugins.server.http.server:HttpServer",
        check="paged_plugins.server.http.server:missing_packages",
        summary="HTTP/1.1, by uvicorn",
    )
    for slot, components in _COMPONENTS.items():
        for options, factory, summary in components:
            yield Component(slot, options, f"paged_plugins.server.{factory}", summary=summary)


@hookimpl
def paged_core_commands() -> Iterator[Command]:
    yield Command(
        "serve", "paged_plugins.server.command:command", "Serve a model over HTTP, as OpenAI does."
    )
    yield Command(
        "chat", "paged_plugins.server.chat_command:command", "Talk to a model that is served."
    )
