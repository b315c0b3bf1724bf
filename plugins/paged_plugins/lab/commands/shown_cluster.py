"""What ``paged-core simulate`` shows of a run of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import typer

from paged_core.cli.output import print_table
from paged_plugins.lab.cluster.record import ClusterRecord, ReplicaTotals
from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.statistics.wording import value_text
from paged_plugins.progress import counted

_EXTREMES = 3
"""Replicas that are shown of each end."""
_OF_REPLICAS = {
    "replica_jain": "Jain index of replicas",
    "replica_max_over_mean": "busiest replica over mean",
}


def cluster_document(record: ClusterRecord, router: str) -> dict[str, Any]:
    """Return the record of a run as JSON has it."""
    return {
        "router": router,
        "requests": record.num_served + record.num_failed,
        "measures": record.measures(),
        "replicas": [_replica(each) for each in record.replicas],
        "timeline": [
            {
                "time": sample.time,
                "requests": sample.num_requests,
                "tokens": sample.num_tokens,
                "most_requests": sample.most_requests,
                "idle_replicas": sample.num_idle,
            }
            for sample in record.timeline
        ],
        "failure": record.failure,
    }


def print_cluster(what: str, record: ClusterRecord, router: str, seconds: float) -> None:
    """Print the record of a run.

    Args:
        what: the workload and the seed.
        seconds: that the simulation took.
    """
    number = record.num_served + record.num_failed
    replicas = counted(len(record.replicas), "replica")
    title = f"{what}: {number:,} requests on {replicas} behind {router}"
    if record.num_served:
        title += f", {value_text('makespan_s', record.elapsed)} in {seconds:.1f} s"
    typer.echo(title)
    if record.num_failed:
        failed = counted(record.num_failed, "request")
        typer.echo(f"{failed} failed, the first: {record.failure}")
    if not record.num_served:
        return  # there is nothing to measure
    if record.num_failed:
        typer.echo("TTFT, TPOT, completion and queueing are those of the other requests")
    print_table("", ["measure", "value"], _measure_rows(record))
    typer.echo("Replicas by generated tokens, the most first")
    columns = ["replica", "requests", "generated tokens", "hit rate", "busy"]
    print_table("", columns, _replica_rows(record))


def _measure_rows(record: ClusterRecord) -> Iterator[Sequence[str]]:
    for name, value in record.measures().items():
        if name in MEASURES:
            yield MEASURES[name].title, value_text(name, value)
        else:
            yield _OF_REPLICAS[name], f"{value:.3f}"


def _replica_rows(record: ClusterRecord) -> Iterator[Sequence[str]]:
    replicas, elapsed = record.replicas, record.elapsed
    order = sorted(range(len(replicas)), key=lambda number: -replicas[number].num_generated)
    shown = order
    if len(order) > 2 * _EXTREMES:
        shown = [*order[:_EXTREMES], *order[-_EXTREMES:]]
    for place, number in enumerate(shown):
        if place == _EXTREMES and len(shown) < len(order):
            yield "...", "", "", "", ""
        each = replicas[number]
        yield (
            str(number),
            f"{each.num_requests:,}",
            f"{each.num_generated:,}",
            _percent(each.num_cached, each.num_prompt),
            _percent(each.busy_seconds, elapsed),
        )


def _replica(totals: ReplicaTotals) -> dict[str, Any]:
    return {
        "requests": totals.num_requests,
        "generated_tokens": totals.num_generated,
        "prompt_tokens": totals.num_prompt,
        "cached_tokens": totals.num_cached,
        "steps": totals.num_steps,
        "busy_seconds": totals.busy_seconds,
    }


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"
