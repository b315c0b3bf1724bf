"""``paged-core lab``: its commands, each in a module of its own."""

from __future__ import annotations

import typer

from paged_plugins.lab.commands.calibrate import validate_command
from paged_plugins.lab.commands.fidelity import fidelity_command
from paged_plugins.lab.commands.league import league_command
from paged_plugins.lab.commands.load import capacity_command
from paged_plugins.lab.commands.studies import report_command, run_command
from paged_plugins.lab.commands.workload import workload_command

app = typer.Typer(rich_markup_mode=None)
app.command("run")(run_command)
app.command("report")(report_command)
app.command("capacity")(capacity_command)
app.command("league")(league_command)
app.command("workload")(workload_command)
app.command("validate")(validate_command)
app.command("fidelity")(fidelity_command)


@app.callback(invoke_without_command=True)
def lab(context: typer.Context) -> None:
    """Ablations, comparisons and simulations, with their uncertainty."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
