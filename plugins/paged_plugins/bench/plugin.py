"""The plugin ``bench``: measures what the engine and its parts cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from paged_core.plugins.component import Command, Component, ComponentSettings
from paged_core.plugins.hooks import hookimpl


class ChromeTraceSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.bench.chrome_trace.ChromeTrace`."""

    name: Literal["chrome_trace"] = "chrome_trace"
    path: Path = Field(
        default=Path("trace.json"), description="the file to write; it is overwritten"
    )


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
