"""The option ``--real``: without it, commands simulate."""

from __future__ import annotations

from typing import Annotated

import typer

from paged_core.config.entry import Entry, Layer, Origin
from paged_core.errors import SettingsError
from paged_core.settings import EngineSettings
from paged_plugins.lab.study.ablation import SIMULATED

Real = Annotated[
    bool, typer.Option("--real", help="Run the model, in real time, instead of a simulation.")
]


def executor_layer(command: str, *, real: bool) -> Layer:
    """Return the executor that a command takes where the settings name none."""
    return () if real else [Entry(("executor",), SIMULATED, Origin("default", command))]


def check_executor(settings: EngineSettings, *, real: bool, arm: str = "") -> None:
    """Refuse an executor that contradicts ``--real``.

    Args:
        arm: whose executor it is, where there are several.

    Raises:
        SettingsError: it does; the message says what to give instead.
    """
    name = settings.executor.name
    what = f"executor {name!r} ({arm})" if arm else f"executor {name!r}"
    if real and name == SIMULATED:
        raise SettingsError(f"--real: {what} runs no model; give --executor local")
    if not real and name != SIMULATED:
        raise SettingsError(
            f"{what} takes real time; give --real as well, or --executor {SIMULATED}"
        )
