"""A comparison as people read it: engines down, workloads across."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import typer

from paged_core.cli.output import print_table
from paged_plugins.bench.machine import machine


def print_comparison(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the speeds, and below them what starting took and the memory.

    Args:
        rows: of :func:`~paged_plugins.bench.comparison.compare`, with ``model``, ``dtype`` and
            ``repeats``.
    """
    computer, first = machine(), rows[0]
    typer.echo(
        f"{first['model']} in {first['dtype']}: output tokens/s, median of {first['repeats']}, in "
        f"turns\n{computer['cpu']}, {computer['cores']} cores, {computer['python']}"
    )
    names = [row["workload"] for row in rows]
    print_table("", ["engine", *names], speeds(rows))
    print_table("\nPeak MiB", ["engine", *names, "seconds to start"], memory(rows))


def speeds(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[object]]:
    """Yield a line for each engine, and one with our speed as a multiple of the best other one."""
    yield from _lines(rows, lambda contender: contender["output_tokens_per_s"])
    if rows[0]["best_peer"] is not None:
        ratios = [f"{row['ratio_to_best']:.2f}" for row in rows]
        yield ["this engine / best other", *ratios]


def memory(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[object]]:
    """Yield a line for each engine: MiB at most until each workload had run, seconds to start."""
    lines = _lines(rows, lambda contender: contender["peak_memory_bytes"] >> 20)
    for line, contender in zip(lines, rows[0]["contenders"], strict=True):
        yield [*line, contender["start_s"]]


def _lines(
    rows: Sequence[Mapping[str, Any]], figure: Callable[[Mapping[str, Any]], object]
) -> Iterator[list[object]]:
    for place, contender in enumerate(rows[0]["contenders"]):
        name = f"{contender['name']} {contender['version']}"
        yield [name, *(figure(row["contenders"][place]) for row in rows)]
