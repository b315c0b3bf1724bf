"""The plugin ``server``: engines as a service over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.plugins.component import Command, Component, Slot
from paged_core.plugins.hooks import hookimpl
from paged_plugins.server.settings import HttpSettings, OpenAISettings, PageSettings


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
        ("openai", "page"),
        many=True,
        summary="what the server answers",
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
