"""The plugin ``bench``: measures what the engine and its parts cost."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.component import Command
from paged_core.hookspecs import hookimpl


@hookimpl
def paged_core_commands() -> Iterator[Command]:
    yield Command(
        "bench", "paged_plugins.bench.commands:app", "Measure what the engine and its parts cost."
    )
