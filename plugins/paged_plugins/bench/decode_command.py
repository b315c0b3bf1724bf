"""``paged-core bench decode``: a decode step against the time that its bytes need."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json, print_table
from paged_core.errors import SettingsError
from paged_plugins.bench.decode_steps import DecodeSteps
from paged_plugins.bench.machine import machine, machine_line
from paged_plugins.bench.rates import Rates, measure_rates
from paged_plugins.bench.throughput_command import open_bench
from paged_plugins.output_file import write_json
from paged_plugins.output_option import JsonFile


def decode_command(
    given: Given,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences that decode.")] = 256,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 1024,
    steps: Annotated[int, typer.Option(min=1, help="Steps per repeat.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats to take the median of.")] = 3,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0,
    roofline: Annotated[
        bool, typer.Option(help="Measure the bandwidth of the device afterwards.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: JsonFile = None,
) -> None:
    """Measure the steps of a batch in which every sequence decodes.

    Compares with the time that reading the weights and the cached keys and values once takes at
    the bandwidth of the device, measured afterwards. On CUDA, some further steps run under torch's
    profiler: the share of the time in which the GPU is idle, and the kernels that take most of it.
    """
    chosen = DecodeSteps(
        batch_size=batch_size,
        context=context,
        steps=steps,
        repeats=repeats,
        temperature=temperature,
    )
    with open_bench(given, [chosen.workload]) as bench:
        size = bench.size()
        if size is None:
            raise SettingsError("this executor runs no model; --executor local does")
        found: dict[str, Any] = {
            "machine": machine(size.layers[0].device),
            "model": bench.llm.settings.model,
            "dtype": bench.dtype,
            "components": bench.components(),
        } | chosen.measure(bench.llm, size)
    if roofline:
        rates = measure_rates(size.layers[0].dtype, size.layers[0].device)
        found |= _compared(found, rates)
    if output is not None:
        write_json(output, found)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _compared(found: dict[str, Any], rates: Rates) -> dict[str, Any]:
    """Return the least time of a step, at the faster of reading and copying."""
    bandwidth = max(rates.read, rates.copy)
    least = 1000 * (found["weight_bytes"] + found["cache_bytes"]) / bandwidth
    return {
        "read_bytes_per_s": round(rates.read),
        "copy_bytes_per_s": round(rates.copy),
        "least_ms": round(least, 4),
        "ratio": round(found["ms_per_step"] / least, 3),
    }


def _print(found: dict[str, Any]) -> None:
    title = (
        f"{found['model']} in {found['dtype']}: {found['batch_size']} sequences of "
        f"{found['context']} tokens, median of {found['repeats']}\n{machine_line(found['machine'])}"
    )
    idle = found["gpu_idle_share"]
    rows: list[tuple[str, object]] = [
        ("milliseconds per step", found["ms_per_step"]),
        ("tokens per second", found["output_tokens_per_s"]),
        ("MB of weights, and of keys and values", _megabytes(found)),
        ("milliseconds that these bytes need", found.get("least_ms", "-")),
        ("ratio", found.get("ratio", "-")),
        ("GPU idle", "-" if idle is None else f"{100 * idle:.1f}%"),
        *((f"milliseconds, {phase}", spent) for phase, spent in found["ms_by_phase"].items()),
    ]
    print_table(title, ["what", "value"], rows)
    if found["kernels"]:
        columns = ["kernel", "us per step", "calls per step"]
        print_table("", columns, [list(kernel.values()) for kernel in found["kernels"]])


def _megabytes(found: dict[str, Any]) -> str:
    return " + ".join(f"{found[key] / 1e6:.0f}" for key in ("weight_bytes", "cache_bytes"))
