"""``paged-core bench compare``: this engine and others on the same requests, in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import psutil
import typer

from paged_core.cli import FAILED, OK
from paged_core.cli.options import SettingsArgs
from paged_core.cli.output import echo, print_table
from paged_core.errors import EngineError, SettingsError
from paged_core.settings.schema import EngineSettings
from paged_plugins.bench.comparison import EngineRuns, compare, row_of, run_alone, warm_up
from paged_plugins.bench.device import device_of, machine, machine_line, measure_rates
from paged_plugins.bench.peers import (
    OURS,
    PEERS,
    Choice,
    PeerProcess,
    Task,
    installed_peers,
    named_peers,
    task_settings,
)
from paged_plugins.bench.throughput_command import WriteCache
from paged_plugins.bench.variants import parse_variants
from paged_plugins.bench.workloads import (
    NAMED,
    InputLength,
    NumRequests,
    OutputLength,
    SharedPrefix,
    Workload,
    drawing,
    longest,
)
from paged_plugins.command_options import JsonFile, reported_rows
from paged_plugins.progress import progress

_LENGTH_STEP = 1024
_CACHE_GIB = 4
_FAILED = "failed"


def compare_command(
    given: SettingsArgs,
    workload: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="W1 to W8, as in bench throughput (default: all)."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=PYTHON]",
            help=f"{', '.join(PEERS)}. Repeatable; PYTHON is that of an environment that has it "
            "(default: all that this one has, with their checkpoint beside the model).",
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME={KEY: VALUE}",
            help="This engine again with these settings on top, in YAML; repeatable. Then only the "
            "peers that are named take part.",
        ),
    ] = None,
    num_requests: NumRequests = None,
    input_len: InputLength = None,
    output_len: OutputLength = None,
    shared_prefix: SharedPrefix = None,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0,
    one_at_a_time: Annotated[
        bool,
        typer.Option(
            "--one-at-a-time",
            help="Load each engine after the one before has ended, and go on if one fails (default "
            "on CUDA).",
        ),
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Runs to take the median of.")] = 3,
    write_cache: WriteCache = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per workload.")] = False,
    output: JsonFile = None,
) -> int:
    """Compare with other engines on the same model, token ids and number of tokens.

    Each engine runs in its own process, and they take turns within every repeat; on CUDA one runs
    after another. Give --model and --dtype; --threads and --kv-cache-memory apply to the others
    too, all other settings to this engine alone. The exit status is 1 if an engine failed.
    """
    settings = given.resolve().settings
    again = _variants(variant or (), given)
    _check(settings.model, settings.dtype, alone=bool(again and not peer))
    described = drawing(num_requests, input_len, output_len, shared_prefix)
    chosen = [*_named_workloads(workload or ()), *described] or list(NAMED.values())
    tell = partial(echo, err=True)
    if peer or again:
        peers = named_peers(peer or (), settings.model, settings.dtype, temperature)
    else:
        peers = installed_peers(settings.model, settings.dtype, tell, temperature)
    device = device_of(settings)
    task = task_for(settings, chosen, device=device, temperature=temperature)
    task = replace(task, write_cache=write_cache)
    engines = [Choice(OURS), *again, *peers]
    measured = _alone if one_at_a_time or device != "cpu" else _in_turns
    names, failed = [each.name for each in chosen], False
    with reported_rows(names, output, as_json, print_comparison) as report_row:
        for row in measured(task, chosen, engines, repeats, tell):
            row |= {"model": settings.model, "dtype": settings.dtype, "repeats": repeats}
            row |= {"device": device, "temperature": temperature}
            row["read_bytes_per_s"] = round(measure_rates(settings.dtype, device).read)
            report_row(row)
            failed = failed or any(one.get("error") for one in row["contenders"])
    return FAILED if failed else OK


def _named_workloads(given: Sequence[str]) -> list[Workload]:
    """Return workloads; SettingsError if a name is unknown."""
    listed = [part for name in given for part in name.split(",") if part]
    if unknown := [name for name in listed if name not in NAMED]:
        raise SettingsError(f"no workload is called {unknown[0]!r}; there are {', '.join(NAMED)}")
    return [NAMED[name] for name in listed]


def _in_turns(
    task: Task,
    workloads: Sequence[Workload],
    choices: Sequence[Choice],
    repeats: int,
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yield the result row of each workload as soon as it is measured."""
    with (
        ExitStack() as stack,
        progress(len(workloads) * repeats * len(choices), "comparing") as advance,
    ):
        engines = [stack.enter_context(PeerProcess(some, task)) for some in choices]
        warm_up(engines, tell)
        for workload in workloads:
            yield compare(workload, engines, repeats, advance)


def _alone(
    task: Task,
    workloads: Sequence[Workload],
    choices: Sequence[Choice],
    repeats: int,
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yield the result rows after all engines have run; of another engine that failed, they say
    why.

    Raises:
        EngineError: our own engine failed.
    """
    found: list[list[EngineRuns]] = []
    vocab_size = None
    with progress(len(workloads) * repeats * len(choices), "comparing") as advance:
        for some in choices:
            try:
                with PeerProcess(some, task) as engine:
                    vocab_size = vocab_size or engine.vocab_size
                    warm_up([engine], tell)
                    found.append(run_alone(engine, workloads, repeats, vocab_size, advance))
            except EngineError as error:
                if some is choices[0]:
                    raise
                tell(f"left out {some.name}: {error}")
                found.append([EngineRuns(some.name, error=str(error))] * len(workloads))
    for workload, runs in zip(workloads, zip(*found, strict=True), strict=True):
        yield row_of(workload, runs)


def _check(model: str, dtype: str, *, alone: bool) -> None:
    """Check that all engines can load the model; ``alone``: they are all this one."""
    if model == "demo" and not alone:
        raise SettingsError("--model demo is known to this engine only; give a folder or a hub id")
    if dtype == "auto":
        raise SettingsError(
            "--dtype auto may select a different dtype in each engine; give bfloat16 or float32"
        )


def _variants(texts: Sequence[str], given: SettingsArgs) -> list[Choice]:
    """Return this engine with the settings of each ``NAME={KEY: VALUE, ...}`` on top of its own.

    Raises:
        SettingsError: a text is not written so, its settings are wrong, or its name is taken.
    """
    found = []
    for variant in parse_variants(texts, {OURS.name, *PEERS}):
        try:
            settings = variant.resolve(given).settings
        except SettingsError as error:
            raise SettingsError(f"--variant {variant.name}: {error}") from error
        found.append(Choice(OURS, None, settings, variant.name))
    return found


def task_for(
    settings: EngineSettings,
    workloads: Sequence[Workload],
    *,
    device: str = "cpu",
    temperature: float = 0.0,
) -> Task:
    """Return the task of all engines; ``max_model_len`` is the longest request, rounded up to a
    multiple of 1,024 tokens.
    """
    length = max(longest(workload.requests()) for workload in workloads)
    memory = settings.kv_cache_memory
    if isinstance(memory, float):
        memory = int(memory * psutil.virtual_memory().available)
    return Task(
        model=settings.model,
        dtype=settings.dtype,
        threads=settings.threads or _threads(),
        max_model_len=-(-length // _LENGTH_STEP) * _LENGTH_STEP,
        longest_request=length,
        cache_gib=max(1, round(memory / (1 << 30))) if memory else _CACHE_GIB,
        settings=task_settings(settings),
        device=device,
        temperature=temperature,
    )


def _threads() -> int:
    """Physical cores that this process may use, counted as the engine does."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(psutil.cpu_count(logical=False) or 1, usable or 1)


def print_comparison(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the speeds, then the peak memory and the start-up times.

    Args:
        rows: results of :func:`~paged_plugins.bench.comparison.compare`, with ``model``,
            ``dtype`` and ``repeats``.
    """
    first = rows[0]
    computer = machine(first.get("device", "cpu"))
    echo(
        f"{first['model']} in {first['dtype']}: output tokens/s, median of {first['repeats']}\n"
        f"{machine_line(computer)}"
    )
    engines = [one for one in first["contenders"] if not one.get("error")]
    written = [one["name"] for one in engines if one["cache_written"]]
    echo(f"caches written before: {', '.join(written) or 'none that is known of'}")
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
