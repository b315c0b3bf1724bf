"""``paged-core lab run``: every arm of an ablation on the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paged_core.cli import FAILED, OK
from paged_core.cli.options import Given
from paged_plugins.command_options import refuse_settings
from paged_plugins.lab.commands.options import STUDY_FILE, Workers
from paged_plugins.lab.commands.ray_option import OnRay
from paged_plugins.lab.results.results_folder import ResultsFolder
from paged_plugins.lab.study.cache_sizes import block_size_note
from paged_plugins.lab.study.plan import Plan, read_plan
from paged_plugins.lab.tasks.run_tasks import open_runner
from paged_plugins.lab.tasks.task import Ran
from paged_plugins.lab.tasks.workers import num_workers
from paged_plugins.progress import counted, progress

Ablation = Annotated[
    Path, typer.Argument(metavar="FILE", help="The ablation, YAML.", show_default=False)
]
Output = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="For the results (default: FILE's name and -results)."),
]


def run_command(
    given: Given,
    file: Ablation,
    output: Output = None,
    workers: Workers = None,
    ray: OnRay = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the results in FOLDER.")] = False,
) -> int:
    """Run an ablation: every arm on the same requests with the same seeds.

    Results go to one folder. Killed or stopped, the command goes on where it was when it is given
    again; runs that failed are tried again. Settings are those of the file alone: neither options
    nor the environment change them.
    """
    refuse_settings(given, STUDY_FILE)
    plan = read_plan(file, given.registry)
    folder = output or Path(f"{file.stem}-results")
    failed: list[Ran] = []
    with ResultsFolder(folder, plan, given.registry, fresh=fresh) as results:
        missing = results.missing()
        all_of_cluster = ray is not None and workers is None and not plan.is_real
        count = None if all_of_cluster else num_workers(len(missing), workers, is_real=plan.is_real)
        typer.echo(beginning(plan, len(missing), count), err=True)
        if note := block_size_note(one.settings for one in plan.arms):
            typer.echo(note, err=True)
        with (
            open_runner(given.registry, workers=count, cluster=ray if missing else None) as runner,
            progress(len(missing), "running") as advance,
        ):
            for ran in runner(missing):
                results.keep(ran)
                advance()
                if ran.problem:
                    failed.append(ran)
                    typer.echo(f"failed: {ran.task}: {ran.problem}", err=True)
        has_parquet = results.finish()
    if not has_parquet:
        typer.echo(
            "note: tables are in JSON alone; for Parquet, pip install 'paged-core[lab]'", err=True
        )
    if failed:
        typer.echo(f"{counted(len(failed), 'run')} failed; run this again to retry", err=True)
    typer.echo(f"results in {folder}; to read them: paged-core lab report {folder}")
    return FAILED if failed else OK


def beginning(plan: Plan, num_missing: int, workers: int | None) -> str:
    """Say what will be run, and how."""
    parts = [str(plan)]
    total = len(list(plan.tasks()))
    if num_missing < total:
        parts.append(f"{total - num_missing} done before")
    if plan.is_real and workers == 1:
        parts.append("one at a time, as they are timed on this machine")
    elif plan.is_real:
        parts.append(f"{workers} at a time, which share the machine: their times are no measure")
    elif workers != 1:
        parts.append(f"{workers or 'one for each core of the cluster'} at a time")
    return "; ".join(parts)
