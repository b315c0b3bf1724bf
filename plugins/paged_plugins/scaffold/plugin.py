"""The plugin ``scaffold``: what this machine can run, and new plugins from templates."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.plugins.component import Command
from paged_core.plugins.hooks import hookimpl


@hookimpl
def paged_core_commands() -> Iterator[Command]:
    yield Command(
        "doctor",
        "paged_plugins.scaffold.doctor:command",
        "What this machine can run, or why not.",
    )
    yield Command(
        "new-plugin",
        "paged_plugins.scaffold.new_plugin:command",
        "Write a plugin from a template.",
    )
