"""``paged-core lab capacity``, and the loads and caches that other commands ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo, print_json, print_table
from paged_core.plugins.registry import Registry
from paged_plugins.lab.commands.options import (
    Replicas,
    Workers,
    WorkloadName,
    check_executor,
    executor_layer,
    parse_limits,
    refuse_observers,
)
from paged_plugins.lab.load.capacity import (
    CAPACITY_SEEDS,
    Searched,
    capacity_seeds,
    find_capacity,
)
from paged_plugins.lab.load.fractions import capacity_text, choice_sentences, fitted, rate_unit
from paged_plugins.lab.measures import MEASURES, value_text
from paged_plugins.lab.results.kept_runs import KeptRuns
from paged_plugins.lab.study.study import Fractions, Study
from paged_plugins.lab.study.unused import refuse_unused
from paged_plugins.lab.tasks.pool import num_workers, open_runner
from paged_plugins.progress import counting
from paged_plugins.workloads.named import workload_spec

_RUNS = "runs to find the rate"
"""Counter of the runs of a command that searches."""


def fit(
    study: Study,
    registry: Registry,
    *,
    workers: int | None,
    say: bool = False,
    kept: Path | None = None,
    fresh: bool = False,
) -> Study:
    """Return a study with the rates and the blocks that are asked for; see :func:`fitted`.

    Args:
        say: print them to standard error.
        kept: a folder for the runs that it takes; ``fresh``: those in it are made again.

    Raises:
        SettingsError: nothing can be written there.
    """
    if study.fractions == Fractions():
        return study
    count = num_workers(CAPACITY_SEEDS + 1, workers, is_real=False)
    with (
        counting(_RUNS) as advance,
        open_runner(registry, workers=count) as runner,
    ):
        trials = KeptRuns(kept, registry, runner, fresh=fresh) if kept else runner
        found = fitted(study, trials, advance)
    if say:
        for sentence in choice_sentences(found.chosen, study.arms[0].arm.title):
            echo(sentence, err=True)
    return found


def capacity_command(
    given: SettingsArgs,
    workload: WorkloadName,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEASURE=NUMBER",
            help="What no rate may exceed, such as ttft_p99=2 or tpot_p99=0.1, in seconds; "
            "repeatable (default: what can be served without queues that grow).",
        ),
    ] = None,
    replicas: Replicas = None,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of requests.")] = CAPACITY_SEEDS,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Find the highest rate at which an engine, or a cluster, can serve a workload.

    On a virtual clock, and for each seed alone: the mean is printed with its 95% confidence
    interval. Without limits it is what is served in the second half of a run in which requests
    arrive 7 to 30% faster than that. Rates are of requests that follow no other.
    """
    settings = given.resolve(
        executor_layer("lab capacity", given.registry, real=False, replicas=replicas)
    ).settings
    check_executor(settings, real=False)
    refuse_unused([entry.key for entry in given.options], [settings], given.registry, replicas)
    refuse_observers(settings)
    spec, limits = workload_spec(workload), parse_limits(limit or ())
    if note := spec.check():
        echo(note, err=True)
    searched = Searched(settings=settings, workload=spec, num_replicas=replicas, limits=limits)
    count = num_workers(seeds + 1, workers, is_real=False)
    with counting(_RUNS) as advance, open_runner(given.registry, workers=count) as runner:
        found = find_capacity(searched, capacity_seeds(spec, seeds), runner, advance)
    told: dict[str, Any] = found.document()
    if as_json:
        head = {"workload": spec.name, "replicas": replicas, "limits": limits, "confidence": 0.95}
        print_json(head | told)
        return
    within = [
        f"{MEASURES[name].title} at most {value_text(name, most)}" for name, most in limits.items()
    ]
    kind = f"with {', '.join(within)}" if within else "that can be served"
    echo(f"{spec.name}: {rate_unit(told)} {kind}: {capacity_text(told)}")
    echo(
        f"{found.rate / found.written_rate:.3g} times as fast as the workload is written; "
        f"{found.num_requests:,} requests a run, {found.num_runs} runs"
    )
    count, fewest, most = found.needed
    shared = getattr(dict(settings)["cost_model"], "tensor_parallel", 1) * (replicas or 1)
    devices = f", {count * shared} devices" if shared > 1 else ""
    echo(f"as it is written it needs {count} [{fewest}, {most}] of these{devices}")
    print_table("", ["seed", rate_unit(told)], [[s, f"{r:.4g}"] for s, r in found.rates.items()])
