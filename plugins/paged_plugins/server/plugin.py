"""The plugin ``server``: engines as a service over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.plugins.component import Command, Component, Slot
from paged_core.plugins.hooks import hookimpl
from paged_plugins.server.parsers.settings import (
    DeepseekR1Settings,
    HermesSettings,
    Llama3JsonSettings,
    MistralSettings,
    NoReasoningSettings,
    PythonicSettings,
    Qwen3Settings,
)
from paged_plugins.server.settings import (
    AnthropicSettings,
    HttpSettings,
    OpenAISettings,
    PageSettings,
    ResponsesSettings,
)


@hookimpl
def paged_core_slots() -> Iterator[Slot]:
    yield Slot(
        "server",
        "paged_plugins.server.server:Server",
        "http",
        summary="how requests come in from outside",
    )
    yield Slot(
        "routes",
        "paged_plugins.server.routes:Routes",
        ("openai", "responses", "anthropic", "page"),
        many=True,
        summary="what the server answers",
    )
    yield Slot(
        "tool_parser",
        "paged_plugins.server.parsers.tool_parser:ToolFormat",
        "auto",
        auto=True,
        summary="how the model writes calls of tools; auto: as its chat template does",
    )
    yield Slot(
        "reasoning_parser",
        "paged_plugins.server.parsers.reasoning_parser:ReasoningFormat",
        "auto",
        auto=True,
        summary="how the model marks its thoughts; auto: as its chat template does",
    )


@hookimpl
def paged_core_components() -> Iterator[Component]:
    yield Component(
        "server",
        HttpSettings,
        "paged_plugins.server.http.server:HttpServer",
        summary="HTTP/1.1, by uvicorn",
    )
    yield Component(
        "routes",
        OpenAISettings,
        "paged_plugins.server.openai.routes:OpenAIRoutes",
        summary="the API of OpenAI with vLLM's extras: models, completions, chat, tokens",
    )
    yield Component(
        "routes",
        ResponsesSettings,
        "paged_plugins.server.responses.routes:ResponsesRoutes",
        summary="OpenAI's Responses API, without anything that is stored",
    )
    yield Component(
        "routes",
        AnthropicSettings,
        "paged_plugins.server.anthropic.routes:AnthropicRoutes",
        summary="Anthropic's API: messages, and how many tokens they have",
    )
    yield Component(
        "tool_parser",
        HermesSettings,
        "paged_plugins.server.parsers.tool_formats:HermesFormat",
        summary="<tool_call>{...}</tool_call>: Hermes, Qwen",
    )
    yield Component(
        "tool_parser",
        Llama3JsonSettings,
        "paged_plugins.server.parsers.tool_formats:Llama3JsonFormat",
        summary="an answer that is JSON: Llama 3.1 and 3.2",
    )
    yield Component(
        "tool_parser",
        MistralSettings,
        "paged_plugins.server.parsers.tool_formats:MistralFormat",
        summary="[TOOL_CALLS][...]: Mistral",
    )
    yield Component(
        "tool_parser",
        PythonicSettings,
        "paged_plugins.server.parsers.pythonic:PythonicFormat",
        summary="[f(x=1)]: Llama 4 and others",
    )
    yield Component(
        "reasoning_parser",
        Qwen3Settings,
        "paged_plugins.server.parsers.reasoning:ThinkFormat",
        summary="<think>...</think>, where the model or the prompt writes it",
    )
    yield Component(
        "reasoning_parser",
        DeepseekR1Settings,
        "paged_plugins.server.parsers.reasoning:DeepseekR1Format",
        summary="thoughts first, up to </think>",
    )
    yield Component(
        "reasoning_parser",
        NoReasoningSettings,
        "paged_plugins.server.parsers.reasoning:NoReasoningFormat",
        summary="all text is the answer",
    )
    yield Component(
        "routes",
        PageSettings,
        "paged_plugins.server.page.routes:Page",
        summary="the page at /: a chat, and the engine as it works",
    )


@hookimpl
def paged_core_commands() -> Iterator[Command]:
    yield Command(
        "serve", "paged_plugins.server.command:command", "Serve a model over HTTP, as OpenAI does."
    )
    yield Command(
        "chat", "paged_plugins.server.chat_command:command", "Talk to a model that is served."
    )
