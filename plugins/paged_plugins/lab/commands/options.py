"""Options that several commands take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Annotated, Any

import typer

from paged_core.cli.frame import SettingsCommand
from paged_core.errors import SettingsError, did_you_mean
from paged_core.settings.layers import Entry, Layer, Origin
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.measures import GOODPUT, MEASURES, ServiceLevel
from paged_plugins.lab.tasks.pool import LOCAL
from paged_plugins.lab.tasks.task import SIMULATED

STUDY_FILE = "the settings of a study are in its file; write it under `base`"
"""Why options that are settings are refused."""

WorkloadName = Annotated[str, typer.Argument(help="A workload's name, or a file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _finite(value: float | None) -> float | None:
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is no number of milliseconds; leave it out for no limit")
    return value


Limit = Annotated[
    float | None,
    typer.Option(min=0, help="A limit for goodput (default: none).", callback=_finite),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at a time (default: one per core; one, if they are real)."),
]
CpuTime = Annotated[
    bool,
    typer.Option(
        "--cpu-time",
        help="Measure the processor time of this process instead, for a busy machine; the model "
        "then gets one thread.",
    ),
]


def chosen_measures(names: Sequence[str] | None, slo: ServiceLevel) -> list[str]:
    """Return the measures that were named.

    Args:
        slo: what goodput is measured by.

    Raises:
        SettingsError: there is none of that name, or it cannot be measured.
    """
    for name in names or ():
        if name not in MEASURES:
            raise SettingsError(
                f"no measure is called {name!r:.80}{did_you_mean(name, MEASURES)} (--measure)"
            )
        if name == GOODPUT and not slo.limits:
            raise SettingsError(
                f"--measure {GOODPUT}: there is no goodput without limits on latencies, which are "
                "--slo-ttft-ms and --slo-tpot-ms, or `slo` in a file"
            )
    return list(names or ())


_ADDRESS = re.compile(rf"auto|{LOCAL}|\S+:\S*")
OnRay = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Run on a Ray cluster: auto or host:port; alone, one is started here.",
    ),
]


class RayCommand(SettingsCommand):
    """Takes ``--ray`` with and without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(with_address(args)))


def with_address(args: Sequence[str]) -> Iterator[str]:
    """Yield arguments, those of ``--ray`` completed."""
    for place, word in enumerate(args):
        following = args[place + 1] if place + 1 < len(args) else ""
        alone = word == "--ray" and not _ADDRESS.fullmatch(following)
        yield f"--ray={LOCAL}" if alone else word


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
