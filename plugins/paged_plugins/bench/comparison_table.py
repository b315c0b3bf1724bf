"""A comparison printed as a table: a row per engine, a column per workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import typer

from paged_core.cli.output import print_table
from paged_plugins.bench.machine import machine, machine_line

_FAILED = "failed"


def print_comparison(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the speeds, then the peak memory and the start-up times.

    Args:
        rows: results of :func:`~paged_plugins.bench.comparison.compare`, with ``model``,
            ``dtype`` and ``repeats``.
    """
    first = rows[0]
    computer = machine(first.get("device", "cpu"))
    typer.echo(
        f"{first['model']} in {first['dtype']}: output tokens/s, median of {first['repeats']}\n"
        f"{machine_line(computer)}"
    )
    engines = [one for one in first["contenders"] if not one.get("error")]
    written = [one["name"] for one in engines if one["cache_written"]]
    typer.echo(f"caches written before: {', '.join(written) or 'none that is known of'}")
    names = [row["workload"] for row in rows]
    print_table("", ["engine", *names], speeds(rows))
    print_table("\nPeak MiB", ["engine", *names, "seconds to start"], memory(rows))


def speeds(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[object]]:
    """Yield a row per engine, and one with our speed as a multiple of the best other engine's."""
    yield from _lines(rows, lambda engine: engine["output_tokens_per_s"])
    if rows[0]["best_peer"] is not None:
        ratios = [f"{row['ratio_to_best']:.2f}" for row in rows]
        yield ["this engine / best other", *ratios]


def memory(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[object]]:
    """Yield a row per engine: peak MiB after each workload, and the seconds to start."""
    lines = _lines(rows, lambda engine: engine["peak_memory_bytes"] >> 20)
    for line, engine in zip(lines, rows[0]["contenders"], strict=True):
        yield [*line, engine.get("start_s", _FAILED)]


def _lines(
    rows: Sequence[Mapping[str, Any]], figure: Callable[[Mapping[str, Any]], object]
) -> Iterator[list[object]]:
    for place, engine in enumerate(rows[0]["contenders"]):
        name = engine["name"] + (f" {engine['version']}" if engine["version"] else "")
        entries = (row["contenders"][place] for row in rows)
        yield [name, *(_FAILED if one.get("error") else figure(one) for one in entries)]
