"""What ``paged-core simulate`` shows of a run of one engine."""

from __future__ import annotations

from typing import Any

import typer

from paged_core.cli.output import print_table
from paged_core.settings import EngineSettings
from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.statistics.wording import value_text
from paged_plugins.progress import counted


def print_run(
    what: str, settings: EngineSettings, record: RunRecord, found: dict[str, float], seconds: float
) -> None:
    """Print the measures of a run.

    Args:
        what: the workload and the seed.
        seconds: that the simulation took.
    """
    num_failed, num_requests = int(found["failed"]), len(record.requests)
    title = f"{what}: {num_requests:,} requests on executor {settings.executor.name}"
    if settings.executor.name == "simulated" and num_failed < num_requests:
        title += f", {value_text('makespan_s', found['makespan_s'])} in {seconds:.1f} s"
    typer.echo(title)
    if num_failed:
        typer.echo(f"{counted(num_failed, 'request')} failed, the first: {record.failure}")
    if num_failed == num_requests:
        return  # nothing was served, so there is nothing to measure
    shares = ("held_share", "reserved_share", "internal_share", "external_share")
    rows = [
        [MEASURES[name].title, value_text(name, value)]
        for name, value in found.items()
        if name not in shares
    ]
    print_table("", ["measure", "value"], rows)
    size = settings.block_size
    typer.echo(f"Memory while busy, of {_num_blocks(record):,} blocks of {size} tokens")
    print_table("", ["use", "share"], _memory_rows(found))


def _num_blocks(record: RunRecord) -> int:
    return record.steps[-1].num_blocks if record.steps else 0


def _memory_rows(found: dict[str, float]) -> list[list[Any]]:
    parts = {
        "states of tokens": found["held_share"],
        "reserved for tokens to come": found["reserved_share"],
        "internal fragmentation": found["internal_share"],
        "external fragmentation": found["external_share"],
    }
    parts["free"] = max(0.0, 1 - sum(parts.values()))
    return [[use, f"{100 * share:.1f}%"] for use, share in parts.items()]
