"""``paged-core lab league``: the page of all installed components."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from paged_core.cli.options import SettingsArgs
from paged_core.cli.output import echo
from paged_core.errors import SettingsError, did_you_mean
from paged_plugins.command_options import check_writable, refuse_settings
from paged_plugins.lab.commands.options import Workers
from paged_plugins.lab.league.league import League, cost_model
from paged_plugins.lab.results.kept_runs import KeptRuns
from paged_plugins.lab.tasks.pool import num_workers, open_runner
from paged_plugins.progress import counted, counting, progress
from paged_plugins.written_files import write_text


def league_command(
    given: SettingsArgs,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The page.", callback=check_writable)
    ] = Path("league.html"),
    slots: Annotated[
        str | None,
        typer.Option(metavar="SLOT,...", help="These divisions alone (an unknown one lists all)."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One GPU, two workloads a division, short runs.")
    ] = False,
    results: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Keeps runs, so that each is run once.")
    ] = Path("league-results"),
    workers: Workers = None,
) -> None:
    """Compare every installed component with the default of its slot, and write one page.

    Evictors, queue orders with predicted lengths, victims, schedulers, routers of a small cluster,
    and whole combinations, on workloads on which they matter and two GPUs. Runs are kept: given
    again, the command runs only what is new.
    """
    from paged_plugins.lab.league.page import page

    refuse_settings(given, "the league is curated; write a study for settings of your own")
    league, registry = League.shipped(), given.registry
    model = cost_model(registry)
    remedy = "" if model == "measured" else "; pip install 'paged-core[gpus]' brings measured ones"
    echo(f"times of steps: {model}{remedy}", err=True)
    if slots is not None:
        names = [each.strip() for each in slots.split(",")]
        for name in names:
            if name not in league.divisions:
                raise SettingsError(
                    f"--slots {name:.80}: divisions are {', '.join(league.divisions)}"
                    f"{did_you_mean(name, league.divisions)}"
                )
        league = league.only(names)
    matches = (league.quick() if quick else league).matches(registry)
    count = num_workers(max(len(each.study) for each in matches), workers, is_real=False)
    with open_runner(registry, workers=count) as raw:
        runner = KeptRuns(results, registry, raw)
        with counting("runs to find rates and caches") as advance:
            matches = [each.fitted(runner, advance) for each in matches]
        total = sum(len(each.study) for each in matches)
        echo(f"{counted(total, 'run')}, {count} at a time, kept in {results}", err=True)
        with progress(total, "running the league") as advance:
            played = [(each, each.compared(runner, advance)) for each in matches]
    from importlib.metadata import version

    facts = {
        "command": shlex.join(["paged-core", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "version": version("paged-core"),
        "model": model,
    }
    write_text(out, page(played, facts))
    echo(f"wrote {out}")
