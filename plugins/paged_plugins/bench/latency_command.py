"""``paged-core bench latency``: the end-to-end latency of a batch."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json, print_table
from paged_plugins.bench.machine import machine, machine_line
from paged_plugins.bench.measurement import percentiles
from paged_plugins.bench.throughput_command import open_bench
from paged_plugins.bench.workloads import drawn
from paged_plugins.output_file import write_json
from paged_plugins.output_option import JsonFile
from paged_plugins.progress import progress


def latency_command(
    given: Given,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests that arrive at once.")] = 1,
    input_len: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 128,
    output_len: Annotated[
        int, typer.Option(min=1, help="Tokens that each request generates.")
    ] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Batches, one after another.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: JsonFile = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace of all steps in the Chrome format."),
    ] = None,
) -> None:
    """Measure one batch at a time: time to first token, time per token, and the whole batch."""
    workload = drawn(batch_size, (input_len, input_len), (output_len, output_len))
    with (
        open_bench(given, [workload], trace=trace) as bench,
        progress(repeats, "measuring") as done,
    ):
        runs = []
        for turn in range(repeats):
            runs.append(bench.run(workload.requests(turn, vocab_size=bench.vocab_size)))
            done()
        found: dict[str, Any] = {
            "machine": machine(bench.device or "cpu"),
            "model": bench.llm.settings.model,
            "dtype": bench.dtype,
            "batch_size": batch_size,
            "input_len": input_len,
            "output_len": output_len,
            "repeats": repeats,
            "mean_ms": round(1000 * mean(run.elapsed for run in runs), 3),
            "latency_ms": percentiles([run.elapsed for run in runs]),
            "ttft_ms": percentiles([value for run in runs for value in run.first_token]),
            "tpot_ms": percentiles([value for run in runs for value in run.per_token]),
        }
    if output is not None:
        write_json(output, found)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    title = (
        f"{found['model']} in {found['dtype'] or 'no dtype'}: {found['batch_size']} at once, "
        f"{found['input_len']} tokens in, {found['output_len']} out, {found['repeats']} times\n"
        f"{machine_line(found['machine'])}"
    )
    named = {"whole": "latency_ms", "first token": "ttft_ms", "per token": "tpot_ms"}
    print_table(
        title,
        ["milliseconds", "p50", "p90", "p99"],
        [
            [name, *("-" if value is None else f"{value:.2f}" for value in found[key].values())]
            for name, key in named.items()
        ],
    )
