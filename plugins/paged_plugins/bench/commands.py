"""``paged-core bench``: its commands, each in a module of its own."""

from __future__ import annotations

import typer

from paged_plugins.bench.attention_command import attention_command
from paged_plugins.bench.communicator_command import communicator_command
from paged_plugins.bench.decode_command import decode_command
from paged_plugins.bench.quality_command import quality_command
from paged_plugins.bench.scheduler_command import scheduler_command
from paged_plugins.bench.serve_command import serve_command
from paged_plugins.bench.throughput_command import throughput_command

app = typer.Typer(rich_markup_mode=None)
app.command("throughput")(throughput_command)
app.command("decode")(decode_command)
app.command("serve")(serve_command)
app.command("quality")(quality_command)
app.command("scheduler")(scheduler_command)
app.command("attention")(attention_command)
app.command("communicator")(communicator_command)


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure what the engine and its parts cost."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
