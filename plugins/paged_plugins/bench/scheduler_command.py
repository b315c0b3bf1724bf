"""``paged-core bench scheduler``: what a step costs without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any

import typer

from paged_core.cli.options import Given, flag
from paged_core.cli.output import print_json, print_table
from paged_core.errors import SettingsError
from paged_plugins.bench.machine import machine
from paged_plugins.bench.null_executor import NULL_EXECUTOR
from paged_plugins.bench.steady_state import SteadyState
from paged_plugins.output_file import write_json
from paged_plugins.output_option import JsonFile
from paged_plugins.progress import progress

_COLUMNS = (
    *("scheduler", "queue_order", "block_allocator", "num_running", "num_waiting"),
    *("us_per_step", "us_per_sequence"),
)


def scheduler_command(
    given: Given,
    schedulers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Schedulers, comma-separated or repeated (default: all)."
        ),
    ] = None,
    queue_orders: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Queue orders, comma-separated or repeated (default: fcfs)."
        ),
    ] = None,
    block_allocators: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Allocators, comma-separated or repeated (default: hash_cached and uncached).",
        ),
    ] = None,
    all_: Annotated[
        bool,
        typer.Option("--all", help="All components of each kind not named; takes a minute."),
    ] = False,
    num_running: Annotated[int, typer.Option(min=1, help="Sequences that run (decode).")] = 256,
    num_waiting: Annotated[int, typer.Option(min=0, help="Requests that wait.")] = 1000,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each sequence.")] = 2048,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per block.")] = 16,
    steps: Annotated[int, typer.Option(min=1, help="Steps in one repeat.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats to take the median of.")] = 9,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: JsonFile = None,
) -> None:
    """Measure what a step costs without a model: microseconds per step and per sequence.

    In a steady state with a fixed number of decoding sequences and of waiting requests, for every
    combination of the schedulers, queue orders and block allocators asked for. Everything that the
    engine does in a step is measured: scheduling, block allocation, building the step input,
    appending tokens, checking stop conditions. Other settings, such as --evictor, apply to all.
    """
    _check_options(given)
    given = replace(
        given, registry=given.registry.extended(NULL_EXECUTOR, plugin="bench_scheduler")
    )
    state = SteadyState(
        num_running=num_running,
        num_waiting=num_waiting,
        context=context,
        block_size=block_size,
        steps=steps,
        repeats=repeats,
    )
    named = {
        "scheduler": (schedulers, None),
        "queue_order": (queue_orders, ["fcfs"]),
        "block_allocator": (block_allocators, ["hash_cached", "uncached"]),
    }
    chosen = [
        _names(given, slot, names, None if all_ else default)
        for slot, (names, default) in named.items()
    ]
    found = {"machine": machine(), "rows": list(_rows(state, given, list(product(*chosen))))}
    if output is not None:
        write_json(output, found)
    if as_json:
        print_json(found)
    else:
        _print(state, found)


def _check_options(given: Given) -> None:
    """Refuse settings that this command sets itself.

    Raises:
        SettingsError: one was given; the message names the option to use instead.
    """
    instead = {
        "scheduler": "--schedulers",
        "queue_order": "--queue-orders",
        "block_allocator": "--block-allocators",
        "num_blocks": "--num-running and --context",
        "max_model_len": "--context",
        "watermark": "--num-running",
        "executor": "another command",
    }
    for entry in given.options:
        if entry.path[0] in instead and entry.path[1:] in ((), ("name",)):
            raise SettingsError(
                f"{flag(entry.path)} has no effect here; use {instead[entry.path[0]]}"
            )


def _names(
    given: Given, slot: str, names: Sequence[str] | None, default: Sequence[str] | None
) -> list[str]:
    """Return the components to measure; without names and default, all.

    Raises:
        PluginError: a component does not exist.
    """
    named = [name for some in names or () for name in some.split(",") if name]
    chosen = named or default or list(given.registry.of(slot))
    return [given.registry.get(slot, name).name for name in dict.fromkeys(chosen)]


def _rows(
    state: SteadyState, given: Given, combinations: Sequence[tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    with progress(len(combinations), "measuring") as advance:
        for scheduler, queue_order, block_allocator in combinations:
            yield state.measure(
                given,
                scheduler=scheduler,
                queue_order=queue_order,
                block_allocator=block_allocator,
            )
            advance()


def _print(state: SteadyState, found: dict[str, Any]) -> None:
    computer = found["machine"]
    title = (
        f"Microseconds per step and per sequence: {state.context} tokens of context, blocks of "
        f"{state.block_size}, median of {state.repeats}\n"
        f"{computer['cpu']}, {computer['cores']} cores, {computer['python']}"
    )
    rows = [
        [
            f"{row[column]:.2f}" if isinstance(row[column], float) else row[column]
            for column in _COLUMNS
        ]
        for row in found["rows"]
    ]
    print_table(title, [column.replace("_", " ") for column in _COLUMNS], rows)
