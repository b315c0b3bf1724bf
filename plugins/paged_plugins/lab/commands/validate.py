"""``paged-core lab validate``: how far a simulation is from the engine that it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json, print_table
from paged_plugins.lab.calibration.processor_clock import ProcessorClock
from paged_plugins.lab.calibration.validation import Check, validate
from paged_plugins.lab.commands.options import AsJson, CpuTime
from paged_plugins.lab.statistics.wording import value_text
from paged_plugins.progress import progress


def validate_command(
    given: Given,
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
        print_json([_row(check) for check in checks])
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
        typer.echo(f"{len(checks) - len(far)} of {len(checks)} within {100 * tolerance:.0f}%")
    return 1 if far else 0


def _row(check: Check) -> dict[str, object]:
    return {
        "workload": check.workload,
        "measure": check.measure,
        "real": check.real,
        "runs": list(check.runs),
        "simulated": check.simulated,
        "error": round(check.error, 4),
    }
