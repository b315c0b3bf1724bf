"""``paged-core bench``: its commands, each in a module of its own."""

from __future__ import annotations

import typer

from paged_plugins.bench.scheduler_command import scheduler_command

app = typer.Typer(rich_markup_mode=None)
app.command("scheduler")(scheduler_command)


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure what the engine and its parts cost."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
