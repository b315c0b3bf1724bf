"""``paged-core calibrate`` and ``paged-core lab validate``: a cost model measured, and tried."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo, print_json, print_table
from paged_core.engine.clock import SystemClock
from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.errors import PagedCoreError, SettingsError
from paged_core.interfaces.executor import SupportsClock
from paged_core.settings.schema import EngineSettings
from paged_plugins.command_options import check_writable
from paged_plugins.lab.calibration.calibrate import (
    Measurement,
    ProcessorClock,
    calibrate,
    measure,
)
from paged_plugins.lab.calibration.scenes import (
    Scene,
    choose_scenes,
    choose_swap_scenes,
    swap_settings,
)
from paged_plugins.lab.calibration.validation import validate
from paged_plugins.lab.commands.options import (
    CpuTime,
)
from paged_plugins.lab.cost_models.linear import WeightsFile, write_weights
from paged_plugins.lab.measures import value_text
from paged_plugins.lab.runs.run_workload import warm_up
from paged_plugins.machine import cpu_model
from paged_plugins.progress import progress


def calibrate_command(
    given: SettingsArgs,
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
        """Build an engine and measure the scenes that are chosen for it."""
        clock = ProcessorClock() if cpu_time else SystemClock()
        engine = build_engine(settings, registry)
        try:
            if isinstance(engine.executor, SupportsClock):
                name = settings.executor.name
                raise SettingsError(f"executor {name!r} runs no model; set another")
            warm_up(engine)
            chosen = choose(engine)
            with progress(repeats * len(chosen), "measuring") as advance:
                return measure(engine, chosen, repeats=repeats, clock=clock, advance=advance)
        finally:
            engine.close()

    ordinary = measured(settings, lambda engine: choose_scenes(engine, steps))
    swaps, reasons = None, {}
    try:
        swapping = swap_settings(settings, registry, ordinary.max_model_len)
        swaps = measured(swapping, choose_swap_scenes)
    except PagedCoreError as error:
        reasons["per_swapped_block"] = str(error)
    origin = {
        "model": settings.model,
        "dtype": settings.dtype,
        "threads": settings.threads,
        "cpu": cpu_model(),
        "clock": "processor" if cpu_time else "wall",
        "repeats": repeats,
        "date": datetime.now(UTC).date().isoformat(),
    }
    found = calibrate(ordinary, settings, swaps=swaps, reasons=reasons, origin=origin)
    write_weights(output, found)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _print(found, output)


def _print(found: WeightsFile, output: Path) -> None:
    echo(f"Weights of {found.measured['steps']} steps, written to {output}")
    print_table("", ["weight", "seconds"], [[n, f"{w:.3g}"] for n, w in found.weights.items()])
    for name, reason in found.unmeasured.items():
        echo(f"{name} was not measured, and takes no time in a simulation: {reason}")
    echo("Errors of the prediction on steps that it was not fitted to")
    print_table(
        "",
        ["steps", "number", "bias", "median", "p90"],
        [
            [kind, each["steps"], *(f"{100 * each[n]:.1f}%" for n in ("bias", "median", "p90"))]
            for kind, each in found.errors.items()
        ],
    )


def validate_command(
    given: SettingsArgs,
    weights: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `paged-core calibrate` wrote.")
    ] = Path("cost_model.yaml"),
    num_requests: Annotated[int, typer.Option(min=4, help="Of each workload.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Of the workloads.")] = 0,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of the real engine; their median counts.")
    ] = 3,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Relative error above which the command fails.")
    ] = 0.1,
    cpu_time: CpuTime = False,
    as_json: AsJson = False,
) -> int:
    """Serve four workloads on a real engine and on its simulation, and compare what they measure.

    All requests at once, requests over time, conversations, and bursts of long prompts; at six
    tenths of the load that the engine can serve, where they arrive over time. The spread says how
    far the runs of the real engine are apart. The exit status is 1 if a prediction is further off
    than the tolerance.
    """
    resolved = given.resolve(**({"threads": 1} if cpu_time else {}))
    model = {"name": "linear", "file": str(weights)}
    simulated = given.resolve(executor="simulated", cost_model=model).settings
    with progress(4 * repeats, "validating") as advance:
        checks = list(
            validate(
                resolved.settings,
                simulated,
                resolved.registry,
                num_requests=num_requests,
                seed=seed,
                repeats=repeats,
                make_clock=ProcessorClock if cpu_time else None,
                advance=advance,
            )
        )
    far = [check for check in checks if abs(check.error) > tolerance]
    if as_json:
        print_json(
            [
                {
                    "workload": check.workload,
                    "measure": check.measure,
                    "real": check.real,
                    "runs": list(check.runs),
                    "simulated": check.simulated,
                    "error": round(check.error, 4),
                }
                for check in checks
            ]
        )
    else:
        print_table(
            "",
            ["workload", "measure", "real", "spread", "simulated", "error"],
            [
                [
                    check.workload,
                    check.measure,
                    value_text(check.measure, check.real),
                    f"{100 * check.spread:.1f}%",
                    value_text(check.measure, check.simulated),
                    f"{100 * check.error:+.1f}%",
                ]
                for check in checks
            ],
        )
        echo(f"{len(checks) - len(far)} of {len(checks)} within {100 * tolerance:.0f}%")
    return 1 if far else 0
