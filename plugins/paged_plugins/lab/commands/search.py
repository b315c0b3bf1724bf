"""``paged-core lab search``: the lab looks for the best settings by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json
from paged_plugins.command_options import JsonFile, refuse_settings
from paged_plugins.files import write_json
from paged_plugins.lab.commands.options import STUDY_FILE, AsJson, Workers
from paged_plugins.lab.commands.ray_option import OnRay
from paged_plugins.lab.search.search_file import arms_of, read_search
from paged_plugins.lab.search.search_report import document, print_search
from paged_plugins.lab.search.search_run import num_runs, planned_rungs, run_search
from paged_plugins.lab.study.cache_sizes import block_size_note
from paged_plugins.lab.tasks.run_tasks import open_runner
from paged_plugins.lab.tasks.workers import num_workers
from paged_plugins.progress import progress


def search_command(
    given: Given,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The search, YAML.", show_default=False)
    ],
    workers: Workers = None,
    ray: OnRay = None,
    as_json: AsJson = False,
    output: JsonFile = None,
) -> None:
    """Search all combinations of settings for the best, in simulation.

    By successive halving: all combinations take part in the first round, with few requests; the
    better ones go on, with more. The best are run again with fresh seeds and compared with the
    base. Settings are those of the file alone.
    """
    refuse_settings(given, STUDY_FILE)
    search = read_search(file)
    arms = arms_of(search, file, given.registry)
    planned = planned_rungs(search, len(arms))
    total = num_runs(search, planned)
    typer.echo(f"up to {total} runs: {', then '.join(map(str, planned))}", err=True)
    if note := block_size_note(one.settings for one in arms):
        typer.echo(note, err=True)
    all_of_cluster = ray is not None and workers is None
    count = None if all_of_cluster else num_workers(total, workers, is_real=False)
    with (
        open_runner(given.registry, workers=count, cluster=ray) as runner,
        progress(total, "searching") as advance,
    ):
        found = run_search(search, arms, runner, advance)
    if output is not None:
        write_json(output, document(found))
    if as_json:
        print_json(document(found))
    else:
        print_search(found)
