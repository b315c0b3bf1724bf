"""The plugin ``bench``: measures what the engine and its parts cost."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.component import Command, Component
from paged_core.hookspecs import hookimpl
from paged_plugins.bench.settings import ChromeTraceSettings


@hookimpl
def paged_core_components() -> Iterator[Component]:
    yield Component(
        "observers",
        ChromeTraceSettings,
        "paged_plugins.bench.chrome_trace:ChromeTrace",
        summary="writes a trace of steps and requests in the Chrome format",
    )


@hookimpl
def paged_core_commands() -> Iterator[Command]:
    yield Command(
        "bench", "paged_plugins.bench.commands:app", "Measure what the engine and its parts cost."
    )
