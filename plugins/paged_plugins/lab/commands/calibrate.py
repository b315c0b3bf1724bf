"""``paged-core calibrate``: measure an engine's steps, and write a cost model of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json, print_table
from paged_core.clock import Clock, SystemClock
from paged_core.engine import Engine
from paged_core.errors import PagedCoreError, SettingsError
from paged_core.interfaces.executor import SupportsClock
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_core.wiring import build_engine
from paged_plugins.command_options import check_writable
from paged_plugins.lab.calibration.calibrate import Calibration, calibrate
from paged_plugins.lab.calibration.chosen_scenes import (
    choose_scenes,
    choose_swap_scenes,
    swap_settings,
)
from paged_plugins.lab.calibration.measurement import Measurement, measure
from paged_plugins.lab.calibration.processor_clock import ProcessorClock
from paged_plugins.lab.calibration.scene import Scene
from paged_plugins.lab.commands.options import AsJson, CpuTime
from paged_plugins.lab.cost_models.weights_file import write_weights
from paged_plugins.lab.runs.run_workload import warm_up
from paged_plugins.machine import cpu_model
from paged_plugins.progress import progress


def calibrate_command(
    given: Given,
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Where the weights are written.", callback=check_writable
        ),
    ] = Path("cost_model.yaml"),
    steps: Annotated[int, typer.Option(min=50, help="Steps to measure, about.")] = 300,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is measured.")] = 3,
    cpu_time: CpuTime = False,
    as_json: AsJson = False,
) -> None:
    """Measure the steps of a real engine over a grid of batches, contexts and chunks, and fit them.

    Everything between the plan of a step and its recorded tokens is measured, and the median of
    the repeats counts. Swaps are those of a second engine, with a small cache. A fifth of the steps
    is not fitted to: the errors are of these. Simulate the engine with --cost-model.name linear
    --cost-model.file FILE.
    """
    resolved = given.resolve(**({"threads": 1} if cpu_time else {}))
    settings, registry = resolved.settings, resolved.registry

    def measured(settings: EngineSettings, choose: Callable[[Engine], list[Scene]]) -> Measurement:
        clock = ProcessorClock() if cpu_time else SystemClock()
        return _measured(settings, registry, choose, repeats, clock)

    ordinary = measured(settings, lambda engine: choose_scenes(engine, steps))
    swaps, reasons = None, {}
    try:
        swapping = swap_settings(settings, registry, ordinary.max_model_len)
        swaps = measured(swapping, choose_swap_scenes)
    except PagedCoreError as error:
        reasons["per_swapped_block"] = str(error)
    found = calibrate(ordinary, settings, swaps=swaps, reasons=reasons)
    file = found.file(_origin(settings, repeats, cpu_time=cpu_time))
    write_weights(output, file)
    if as_json:
        print_json(file.model_dump(mode="json"))
    else:
        _print(found, output)


def _measured(
    settings: EngineSettings,
    registry: Registry,
    choose: Callable[[Engine], list[Scene]],
    repeats: int,
    clock: Clock,
) -> Measurement:
    """Build an engine and measure the scenes that are chosen for it."""
    engine = build_engine(settings, registry)
    try:
        if isinstance(engine.executor, SupportsClock):
            raise SettingsError(f"executor {settings.executor.name!r} runs no model; set another")
        warm_up(engine)
        chosen = choose(engine)
        with progress(repeats * len(chosen), "measuring") as advance:
            return measure(engine, chosen, repeats=repeats, clock=clock, advance=advance)
    finally:
        engine.close()


def _origin(settings: EngineSettings, repeats: int, *, cpu_time: bool) -> dict[str, Any]:
    return {
        "model": settings.model,
        "dtype": settings.dtype,
        "threads": settings.threads,
        "cpu": cpu_model(),
        "clock": "processor" if cpu_time else "wall",
        "repeats": repeats,
        "date": datetime.now(UTC).date().isoformat(),
    }


def _print(found: Calibration, output: Path) -> None:
    typer.echo(f"Weights of {found.num_steps} steps, written to {output}")
    print_table("", ["weight", "seconds"], [[n, f"{w:.3g}"] for n, w in found.weights.items()])
    for name, reason in found.unmeasured.items():
        typer.echo(f"{name} was not measured, and takes no time in a simulation: {reason}")
    typer.echo("Errors of the prediction on steps that it was not fitted to")
    print_table(
        "",
        ["steps", "number", "bias", "median", "p90"],
        [
            [
                kind,
                each["steps"],
                *(f"{100 * each[name]:.1f}%" for name in ("bias", "median", "p90")),
            ]
            for kind, each in found.errors.items()
        ],
    )
