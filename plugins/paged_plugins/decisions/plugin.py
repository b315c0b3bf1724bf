"""The plugin ``decisions``: the decisions of an engine as data, to replay and to compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from paged_core.plugins.component import Command, Component, ComponentSettings
from paged_core.plugins.hooks import hookimpl


class DecisionLogSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.decisions.trace.DecisionLog`."""

    name: Literal["decision_log"] = "decision_log"
    path: Path = Field(
        default=Path("decisions.jsonl"), description="the file; what it had is kept as PATH.1"
    )


@hookimpl
def paged_core_components() -> Iterator[Component]:
    yield Component(
        "observers",
        DecisionLogSettings,
        "paged_plugins.decisions.trace:DecisionLog",
        summary="writes the decisions of each step, a line of JSON per step",
    )


@hookimpl
def paged_core_commands() -> Iterator[Command]:
    yield Command(
        "replay",
        "paged_plugins.decisions.replay_command:replay_command",
        "Run scenarios without a model and print the decisions.",
    )
    yield Command(
        "diff",
        "paged_plugins.decisions.diff:diff_command",
        "Show the first difference of two decision traces.",
    )
    yield Command(
        "decisions",
        "paged_plugins.decisions.import_command:app",
        "Import what another engine served and decided.",
    )
