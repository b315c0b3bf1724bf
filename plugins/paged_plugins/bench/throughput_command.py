"""``paged-core bench throughput``: workloads on one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import SettingsArgs
from paged_core.cli.output import print_table
from paged_core.errors import SettingsError
from paged_plugins.bench.device import machine, machine_line
from paged_plugins.bench.measurement import Bench
from paged_plugins.bench.workloads import (
    InputLength,
    LabWorkload,
    NumRequests,
    OutputLength,
    SharedPrefix,
    Workload,
    drawing,
)
from paged_plugins.command_options import JsonFile, reported_rows
from paged_plugins.progress import progress
from paged_plugins.workloads.batch import NAMED, by_turn
from paged_plugins.workloads.named import names, workload_spec
from paged_plugins.workloads.spec import WorkloadSpec

WriteCache = Annotated[
    bool,
    typer.Option(
        "--write-cache",
        help="Write this engine's whole cache once before anything is measured: no step waits for "
        "its memory.",
    ),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a trace of all steps in the Chrome format."),
]


def throughput_command(
    given: SettingsArgs,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help=f"{', '.join(names())} (default: {', '.join(NAMED)}, if their requests fit the "
            "model), or a file that `lab workload` reads. Repeatable, "
            "comma-separated.",
        ),
    ] = None,
    num_requests: NumRequests = None,
    input_len: InputLength = None,
    output_len: OutputLength = None,
    shared_prefix: SharedPrefix = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs to take the median of.")] = 3,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0,
    roofline: Annotated[
        bool, typer.Option(help="Measure the machine's limits after each workload, a second each.")
    ] = True,
    write_cache: WriteCache = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per workload.")] = False,
    output: JsonFile = None,
    trace: TraceFile = None,
) -> None:
    """Measure workloads on an engine: tokens per second, latencies, memory, time by phase.

    End-of-sequence tokens are ignored; from token ids to token ids: detokenisation is measured
    separately. Two short requests run as a warm-up. Each repeat has different tokens, so that none
    hits the cached prefixes of another. A later turn of a conversation arrives when the previous
    one has ended, or its think time later. The share of the roofline compares with the least time
    that a workload which arrives at once can take on this machine, whose limits are measured after
    it.
    """
    described = drawing(num_requests, input_len, output_len, shared_prefix)
    listed, from_lab = _told_apart(workload or ())
    chosen = [*listed, *described]
    with open_bench(given, chosen, trace=trace, write_cache=write_cache) as bench:
        bench.temperature = temperature
        counted = [LabWorkload.counted(each, bench.llm.tokenizer) for each in from_lab]
        bench.check_lengths(counted)
        chosen = [*chosen, *counted] or _fitting(bench)
        total = repeats * sum(sum(1 for _ in by_turn(some.requests())) for some in chosen)
        with (
            reported_rows([each.name for each in chosen], output, as_json, _print) as report_row,
            progress(total, "measuring") as advance,
        ):
            for some in chosen:
                report_row(bench.measure(some, repeats=repeats, roofline=roofline, advance=advance))


def _told_apart(given: Sequence[str]) -> tuple[list[Workload], list[WorkloadSpec]]:
    """Return the named workloads of the benchmarks, and the others: those of the lab, and files.

    Raises:
        SettingsError: a name is unknown, or a file cannot be read.
    """
    listed: list[Workload] = []
    from_lab: list[WorkloadSpec] = []
    for text in given:
        parts = [text] if Path(text).exists() else [part for part in text.split(",") if part]
        for part in parts:
            if part in NAMED:
                listed.append(NAMED[part])
            elif part in names() or Path(part).exists():
                from_lab.append(workload_spec(part))
            else:
                known = ", ".join(names())
                raise SettingsError(
                    f"no workload is called {part!r:.80}, and there is no such file; there are "
                    f"{known}"
                )
    return listed, from_lab


def _fitting(bench: Bench) -> list[Workload]:
    """Return the built-in workloads that the engine can serve; print which ones it cannot.

    Raises:
        SettingsError: it can serve none.
    """
    chosen: list[Workload] = [each for each in NAMED.values() if bench.fits(each)]
    if not chosen:
        bench.check_lengths(list(NAMED.values()))
    left_out = [name for name, workload in NAMED.items() if workload not in chosen]
    if left_out:
        limit = bench.llm.engine.capacity.max_model_len
        typer.echo(
            f"left out {', '.join(left_out)}: the engine serves requests of {limit} tokens, and "
            "theirs are longer",
            err=True,
        )
    return chosen


def open_bench(
    given: SettingsArgs,
    workloads: Sequence[Workload],
    *,
    trace: Path | None = None,
    write_cache: bool = False,
    **overrides: Any,
) -> Bench:
    """Start an engine, check that the workloads fit it, and warm it up."""
    from paged_core.llm import LLM

    if trace is not None:
        observers = [
            options.model_dump(mode="json") for options in given.resolve().settings.observers
        ]
        overrides["observers"] = [*observers, {"name": "chrome_trace", "path": str(trace)}]
    resolved = given.resolve(**overrides)
    bench = Bench(LLM.from_settings(resolved.settings, resolved.registry))
    try:
        bench.check_lengths(workloads)
        if write_cache:
            bench.write_cache()
        bench.warm_up()
    except BaseException:
        bench.llm.close()
        raise
    return bench


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    first = rows[0]
    title = (
        f"{first['model']} in {first['dtype'] or 'no dtype'}, median of {first['repeats']}, "
        f"{'cache written before' if first['cache_written'] else 'cache not written before'}\n"
        f"{machine_line(machine(first['device'] or 'cpu'))}\n"
        + ", ".join(f"{slot} {name}" for slot, name in first["components"].items())
    )
    if first["quantized_products"] is not None:
        title += f"\nproducts with quantised weights: {first['quantized_products']}"
    columns = ["workload", "requests", "seconds", "output tokens/s", "total tokens/s"]
    columns += ["first token ms p50/p90/p99", "per token ms p50/p90/p99", "peak MiB", "of ceiling"]
    print_table(title, columns, [_figures(row) for row in rows])
    phases = list(first["seconds"])
    print_table(
        "\nSteps, and milliseconds per step by phase",
        ["workload", "steps", "cached tokens", "preemptions", *phases],
        [
            [
                row["workload"],
                row["steps"],
                row["cached_tokens"],
                row["preemptions"],
                *(f"{1000 * row['seconds'][phase] / row['steps']:.3f}" for phase in phases),
            ]
            for row in rows
        ],
    )


def _figures(row: Mapping[str, Any]) -> list[object]:
    roofline = row["roofline"]
    return [
        row["workload"],
        row["requests"],
        f"{row['elapsed_s']:.2f}",
        row["output_tokens_per_s"],
        row["total_tokens_per_s"],
        *("/".join(map(_short, row[key].values())) for key in ("ttft_ms", "tpot_ms")),
        row["peak_memory_bytes"] >> 20,
        f"{100 * roofline['share']:.0f}% of {roofline['ceiling_tokens_per_s']:.0f}"
        if roofline
        else "unknown",
    ]


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
