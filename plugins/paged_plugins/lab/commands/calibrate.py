"""``paged-core calibrate`` and ``paged-core lab validate``: a cost model measured, and tried."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo, print_json, print_table
from paged_core.engine.clock import Clock, SystemClock
from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.errors import EngineError, PagedCoreError, SettingsError
from paged_core.interfaces.executor import SupportsClock
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.command_options import check_writable
from paged_plugins.http_client import HttpClient, fastest_loop
from paged_plugins.http_load import find_model, find_vocab_size
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
from paged_plugins.lab.calibration.served_fit import calibrate_served, check_fitted, observe
from paged_plugins.lab.calibration.served_loads import (
    CACHE_SLOTS,
    Driven,
    cache_of,
    design,
    drive,
    in_turn,
)
from paged_plugins.lab.commands.options import CpuTime, refuse_observers
from paged_plugins.lab.cost_models.weights_file import WeightsFile, write_weights
from paged_plugins.lab.measures import ServiceLevel, measures, value_text
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.run_workload import run_workload, warm_up
from paged_plugins.lab.settings import LinearSettings
from paged_plugins.machine import cpu_model
from paged_plugins.progress import errors_text, progress
from paged_plugins.workloads.spec import WorkloadSpec, parse_spec

COMPARED = (
    "throughput_tokens_per_s",
    "ttft_ms_p50",
    "ttft_ms_p90",
    "tpot_ms_p50",
    "tpot_ms_p90",
)
"""The measures that are compared."""
_LOAD = 0.6
"""Share of the rate that the engine can serve, where requests arrive over time."""
_SHORT: Mapping[str, Any] = {
    "prompt": {"lognormal": {"median": 60, "sigma": 0.8, "min": 4, "max": 400}},
    "output": {"uniform": [8, 48]},
}
_LONG: Mapping[str, Any] = {"prompt": {"uniform": [100, 500]}, "output": {"uniform": [4, 16]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One measure of one workload, real and simulated."""

    workload: str
    measure: str
    runs: tuple[float, ...]
    """Values of the runs of the real engine."""
    simulated: float

    @property
    def real(self) -> float:
        """The median of the runs."""
        return median(self.runs)

    @property
    def spread(self) -> float:
        """Distance between the runs, as a share of their median."""
        return (max(self.runs) - min(self.runs)) / self.real

    @property
    def error(self) -> float:
        """Simulated / real - 1."""
        return self.simulated / self.real - 1


def validation_workloads(num_requests: int, rates: Mapping[str, float]) -> Iterator[WorkloadSpec]:
    """Yield four workloads: all at once, over time, conversations, and bursts of long prompts.

    Args:
        rates: requests per second by workload; those that are left out arrive at once.
    """
    conversation = {"turns": {"uniform": [2, 4]}, "think": {"exponential": 1.0}}
    described: Mapping[str, Mapping[str, Any]] = {
        "at_once": {"lengths": _SHORT},
        "over_time": {"lengths": _SHORT},
        "conversations": {
            "lengths": _SHORT,
            "prefixes": {"system": 64, "conversation": conversation},
        },
        "bursts": {"lengths": _LONG},
    }
    for name, values in described.items():
        rate = rates.get(name)
        kind = (
            {"gamma": {"rate": rate, "burstiness": 0.4}}
            if name == "bursts"
            else {"poisson": {"rate": rate}}
        )
        yield parse_spec(
            {
                "name": name,
                "requests": num_requests,
                "max_tokens": 1000,
                **values,
                **({} if rate is None else {"arrivals": kind}),
            },
            f"workload {name}",
        )


def validate(
    real: EngineSettings,
    simulated: EngineSettings,
    registry: Registry,
    *,
    num_requests: int,
    seed: int,
    repeats: int,
    make_clock: Callable[[], Clock] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[Check]:
    """Run four workloads on both engines, and yield what they measured.

    Requests that arrive over time do so at six tenths of the rate that the simulated engine can
    serve.

    Args:
        repeats: runs of the real engine, of which the median counts.
        make_clock: of the real engine; ``None``: this machine's.
        advance: called after each of its runs.

    Raises:
        EngineError: a request ended with an error.
    """
    rates = {}
    for spec in validation_workloads(num_requests, {}):
        if spec.name != "at_once":
            record = _sound(run_workload(simulated, registry, spec.build(), seed))
            rates[spec.name] = _LOAD * len(record.requests) / record.totals.elapsed
    for spec in validation_workloads(num_requests, rates):
        workload = spec.build()
        record = _sound(run_workload(simulated, registry, workload, seed))
        predicted = measures(record, ServiceLevel())
        ran = []
        for _ in range(repeats):
            clock = make_clock() if make_clock else None
            record = _sound(run_workload(real, registry, workload, seed, clock=clock))
            ran.append(measures(record, ServiceLevel()))
            advance()
        for name in COMPARED:
            yield Check(
                workload=spec.name,
                measure=name,
                runs=tuple(run[name] for run in ran),
                simulated=predicted[name],
            )


def _sound(record: RunRecord) -> RunRecord:
    """Return a record if no request of it ended with an error; EngineError else."""
    if record.num_errors:
        raise EngineError(errors_text(record.num_errors, len(record.requests), record.error))
    return record


def calibrate_command(
    given: SettingsArgs,
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Where the weights are written.", callback=check_writable
        ),
    ] = Path("cost_model.yaml"),
    steps: Annotated[
        int | None,
        typer.Option(
            min=50,
            help="Steps to measure, about (300); the grid of an engine takes some, however few.",
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Times that each is measured (3).")
    ] = None,
    cpu_time: CpuTime = False,
    url: Annotated[
        str | None, typer.Option(help="Measure this server instead; its model is --model.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Of the server (OPENAI_API_KEY).", show_default=False)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Loads are sent for so long at most (120).")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="In all loads, at most (1000).")
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests at once, at most (64).")
    ] = None,
    max_prompt: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a prompt, about, at most (2048).")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=2, help="Token ids are below it; found by trying.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the steps of a real engine over a grid of batches, contexts and chunks, and fit them.

    Everything between the plan of a step and its recorded tokens is measured, and the median of
    the repeats counts. Swaps are those of a second engine, with a small cache. A fifth of the steps
    is not fitted to: the errors are of these. Simulate the engine with --cost-model.name linear
    --cost-model.file FILE.

    With --url, a server of OpenAI's protocol gets loads over a grid of clients and lengths, and the
    weights of `linear`, or the terms of the --cost-model that is named that are not measured, are
    fitted to its TTFT and times per token. Settings say what its scheduler is, as
    --scheduler.max-num-batched-tokens. A quarter of the loads is not fitted to.
    """
    of_engine = {"--steps": steps, "--repeats": repeats, "--cpu-time": cpu_time or None}
    of_server = {
        "--api-key": api_key,
        "--seconds": seconds,
        "--requests": requests,
        "--max-concurrency": max_concurrency,
        "--max-prompt": max_prompt,
        "--vocab-size": vocab_size,
    }
    for option, value in (of_engine if url else of_server).items():
        if value is not None:
            how = "with" if url else "without"
            raise SettingsError(f"{option} has no effect {how} --url; leave it out")
    if url is not None:
        bounds = Bounds(seconds or 120, requests or 1000, max_concurrency or 64, max_prompt or 2048)
        key = api_key or os.environ.get("OPENAI_API_KEY")
        found = calibrate_server(given, HttpClient(url, api_key=key), bounds, vocab_size)
        write_weights(output, found)
        print_json(found.model_dump(mode="json")) if as_json else _print(found, output)
        return
    steps, repeats = steps or 300, repeats or 3
    resolved = given.resolve(**({"threads": 1} if cpu_time else {}))
    settings, registry = resolved.settings, resolved.registry
    refuse_observers(settings)

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


_MOST_NOISE = 0.2
"""Share by which the times of one load may differ: a fit is no better than its data."""


class Bounds(NamedTuple):
    """Bounds of a design of loads."""

    seconds: float
    requests: int
    clients: int
    prompt: int


def calibrate_server(
    given: SettingsArgs, client: HttpClient, bounds: Bounds, vocab_size: int | None
) -> WeightsFile:
    """Send loads to a server, and fit a cost model to its answers."""
    resolved = given.resolve(executor="simulated")
    settings: Any = resolved.settings
    named = [key for key in resolved.origins if key.startswith("cost_model")]
    if all(resolved.origins[key].layer == "default" for key in named):
        settings = settings.model_copy(update={"cost_model": LinearSettings()})
    check_fitted(settings, resolved.registry)
    asked = None if resolved.origins["model"].layer == "default" else settings.model

    async def run() -> tuple[str, int | None, tuple[int, int] | None, Driven]:
        model, longest = await find_model(client, asked)
        size = vocab_size or await find_vocab_size(client, model)
        cache = await cache_of(client)
        slots = cache[0] * cache[1] if cache else CACHE_SLOTS
        most = min(bounds.prompt, *((longest // 2,) if longest else ()))
        loads = design(
            most_clients=bounds.clients,
            most_prompt=max(1, most),
            most_requests=bounds.requests,
            room=slots,
            vocab_size=size,
        )
        total = sum(len(load.requests) for load in in_turn(loads))
        with progress(total, f"sending, {bounds.seconds:g} s at most") as advance:
            driven = await drive(
                client,
                model,
                loads,
                vocab_size=size,
                seconds=bounds.seconds,
                advance=advance,
            )
        if len(driven.loads) < len(loads):
            echo(
                f"the time was up after {len(driven.loads)} of {len(loads)} loads, of which the "
                "smallest come first; --seconds gives more",
                err=True,
            )
        return model, longest, cache, driven

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        model, longest, cache, (served, noise) = runner.run(run())
    known = {"max_model_len": longest}
    if cache is not None:
        known |= {"num_blocks": cache[0], "block_size": cache[1]}
    update = {
        name: value
        for name, value in known.items()
        if value is not None and resolved.origins[name].layer == "default"
    }
    settings = settings.model_copy(update=update)
    found = calibrate_served(
        observe(served, settings, resolved.registry), settings, resolved.registry
    )
    origin = {
        "url": client.url,
        "model": model,
        "loads": len(served),
        "noise": noise and float(f"{noise:.2g}"),
        "date": datetime.now(UTC).date().isoformat(),
    }
    return found.model_copy(
        update={
            "measured": {**origin, **found.measured},
            "max_model_len": longest,
            "num_tokens": cache and cache[0] * cache[1],
        }
    )


def _print(found: WeightsFile, output: Path) -> None:
    what = "steps" if "steps" in found.measured else "loads"
    echo(f"Weights of {found.measured[what]} {what}, written to {output}")
    rows = [[name, f"{weight:.3g}"] for name, weight in found.weights.items()]
    print_table("", ["weight", "value"], rows)
    for reason in dict.fromkeys(found.unmeasured.values()):
        names = [name for name, why in found.unmeasured.items() if why == reason]
        effect = "takes no time in a simulation" if found.cost_model == "linear" else "is as given"
        echo(f"{', '.join(names)} was not measured, and {effect}: {reason}")
    if "seconds_per_request" in found.measured:
        each = 1000 * found.measured["seconds_per_request"]
        echo(f"Outside the engine, each request takes {each:.1f} ms, which no simulation has")
    echo(f"Errors of the prediction on {what} that it was not fitted to")
    columns = ("bias", "median", "p90")
    print_table(
        "",
        [what, "number", *columns],
        [
            [kind, each[what], *(f"{100 * each[n]:.1f}%" for n in columns)]
            for kind, each in found.errors.items()
        ],
    )
    if noise := found.measured.get("noise"):
        echo(f"The times of one load, sent several times, differ by up to {100 * noise:.0f}%")
        if noise > _MOST_NOISE:
            echo(
                "These weights are of no use: the server's machine or its network has other work; "
                "measure again when it has none",
                err=True,
            )
    echo(f"To use it: --cost-model.name {found.cost_model} --cost-model.file {output}")


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
    refuse_observers(resolved.settings)
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
