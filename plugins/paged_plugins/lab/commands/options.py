"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf, isfinite, nan
from typing import Annotated, Any

import typer

from paged_core.errors import SettingsError, did_you_mean
from paged_core.plugins.registry import Registry
from paged_core.settings.layers import Entry, Layer, Origin
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.cluster.simulate_cluster import DEFAULT_ROUTER, check_slot
from paged_plugins.lab.measures import (
    BALANCE,
    GOODPUT,
    LATENCIES,
    MEASURES,
    MEMORY_SHARES,
    ServiceLevel,
)
from paged_plugins.lab.settings import SIMULATED

STUDY_FILE = "the settings of a study are in its file; write it under `base`"
"""Why options that are settings are refused."""

LIMITED = tuple(
    name
    for name in MEASURES
    if name == "missed_deadlines" or name.split("_")[0] in {*LATENCIES} - {"itl"}
)
"""Measures of requests, that a limit may be set to: the more arrive, the larger they are."""
WorkloadName = Annotated[str, typer.Argument(help="A workload's name, or a file.")]


def _finite(value: float | None) -> float | None:
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is no number of milliseconds; leave it out for no limit")
    return value


Limit = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="MS", help="A limit for goodput (default: none).", callback=_finite
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Runs at a time (default: cores; real: one)."),
]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Engines behind a --router (default: one)."),
]


def refuse_observers(settings: EngineSettings) -> None:
    """Refuse observers where there are several runs."""
    if settings.observers:
        raise SettingsError("leave observers out: all runs would write the same files")


def _shares(given: Any) -> Any:
    for each in () if given in (None, "") else str(given).split(","):
        try:
            is_share = 0.01 <= float(each) <= 4
        except ValueError:
            is_share = False
        if not is_share:
            raise typer.BadParameter(f"{each!r:.40} is no share; give numbers from 0.01 to 4")
    return given


def shares(text: str | None) -> tuple[float, ...]:
    """Return the shares that an option lists."""
    return tuple(map(float, text.split(","))) if text else ()


Load = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE,...",
        help="Arrivals, as shares of the first arm's capacity.",
        callback=_shares,
    ),
]


WorkingSet = Annotated[
    float | None,
    typer.Option(
        callback=_shares,
        metavar="SHARE",
        help="Blocks, as a share of the distinct ones of the workload (see `lab workload`).",
    ),
]
Cache = Annotated[
    float | None,
    typer.Option(
        callback=_shares,
        metavar="SHARE",
        help="A share of the most blocks that the first arm holds.",
    ),
]
CpuTime = Annotated[
    bool,
    typer.Option(
        "--cpu-time",
        help="Measure the processor time of this process instead, for a busy machine; the model "
        "then gets one thread.",
    ),
]


def chosen_measures(
    names: Sequence[str] | None, slo: ServiceLevel, *, is_cluster: bool
) -> list[str]:
    """Return the measures that were named.

    Args:
        slo: what goodput is measured by.
        is_cluster: whether replicas serve the requests.

    Raises:
        SettingsError: there is none of that name, or it cannot be measured.
    """
    chosen = list(map(measure_name, names or ()))
    for name in chosen:
        if name not in MEASURES:
            raise SettingsError(f"no measure is called {name!r:.80}{_near(name)} (--measure)")
        if name in BALANCE and not is_cluster:
            raise SettingsError(f"--measure {name}: it is of a cluster; give --replicas")
        if name in MEMORY_SHARES and is_cluster:
            raise SettingsError(
                f"--measure {name}: it is of one engine alone; leave it or --replicas out"
            )
        if name == GOODPUT and not slo.limits:
            raise SettingsError(
                f"--measure {GOODPUT}: there is no goodput without limits on latencies, which are "
                "--slo-ttft-ms and --slo-tpot-ms, or `slo` in a file"
            )
    return chosen


def _near(word: str, names: Collection[str] = MEASURES) -> str:
    """Return the names with a word in them, or else the nearest, to append to a message."""
    return did_you_mean(word, [name for name in names if word in name] or names)


def measure_name(text: str) -> str:
    """Return the name of a measure; ``ttft_p99`` is short for ``ttft_ms_p99``."""
    kind, _, part = text.rpartition("_")
    long = f"{kind}_ms_{part}"
    return long if long in MEASURES else text


def parse_limits(texts: Sequence[str]) -> dict[str, float]:
    """Return the limits that ``--limit MEASURE=NUMBER`` gives, by measure and in its unit.

    Raises:
        SettingsError: one is no limit, or none that a rate can be searched by.
    """
    limits = {}
    for text in texts:
        short, _, number = (part.strip() for part in text.partition("="))
        name = measure_name(short)
        if name not in LIMITED or not number:
            names = [each.replace("_ms_", "_") for each in LIMITED]
            known = "" if name in LIMITED else _near(short, names)
            raise SettingsError(
                f"--limit {text:.80}: give a latency and its limit, as in ttft_p99=2 (seconds), or "
                f"missed_deadlines=0.01{known}"
            )
        if name in limits:
            raise SettingsError(f"--limit: {name} is given twice; leave one out")
        try:
            limits[name] = float(number) * (1 if short == name else 1e3)
        except ValueError:
            limits[name] = nan
        if not 0 < limits[name] < inf:
            raise SettingsError(f"--limit {text:.80}: {number!r} is no number above 0")
    return limits


Real = Annotated[bool, typer.Option("--real", help="Run the model, in real time.")]


def executor_layer(
    command: str, registry: Registry, *, real: bool, replicas: int | None = None
) -> Layer:
    """Return the executor, and the router of replicas, that a command takes where the settings
    name none.

    Raises:
        SettingsError: there are several replicas, and no routers.
    """
    origin = Origin("default", command)
    chosen = {} if real else {"executor": SIMULATED}
    if (replicas or 1) > 1:
        check_slot(registry)
        chosen["router"] = DEFAULT_ROUTER
    return [Entry((key,), name, origin) for key, name in chosen.items()]


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
