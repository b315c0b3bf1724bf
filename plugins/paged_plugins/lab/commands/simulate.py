"""``paged-core simulate``: one run of a workload, and its measures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from os import times
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json, print_table
from paged_core.errors import SettingsError
from paged_core.settings import EngineSettings, Resolved
from paged_plugins.counted import counted
from paged_plugins.lab.cluster.record import ClusterRecord, OnRequest, ReplicaTotals
from paged_plugins.lab.cluster.simulate_cluster import num_workers, router_options, simulate_cluster
from paged_plugins.lab.commands.options import (
    AsJson,
    Limit,
    Real,
    WorkloadName,
    check_executor,
    executor_layer,
)
from paged_plugins.lab.measures import MEASURES, ServiceLevel, measures
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.lab.statistics.phrases import value_text
from paged_plugins.output_file import unwritable
from paged_plugins.output_option import check_writable
from paged_plugins.progress import counting
from paged_plugins.workloads.named import workload_spec
from paged_plugins.workloads.spec import WorkloadSpec

_ROWS = 10_000
"""That are gathered before they are written to Parquet, which keeps columns."""


@contextmanager
def request_log(path: Path | None) -> Iterator[OnRequest]:
    """Write requests to a file: Parquet by its suffix, lines of JSON else; ``None``: nowhere.

    Yields:
        What is to be called with each request and the number of its replica.

    Raises:
        SettingsError: the file cannot be written, or pyarrow is missing.
    """
    if path is None:
        yield lambda request, replica: None
        return
    open_log = _parquet_log if path.suffix == ".parquet" else _json_log
    try:
        with open_log(path) as write:
            yield write
    except OSError as error:
        raise unwritable(path, error) from error


@contextmanager
def _json_log(path: Path) -> Iterator[OnRequest]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda request, replica: print(json.dumps(_log_row(request, replica)), file=file)


@contextmanager
def _parquet_log(path: Path) -> Iterator[OnRequest]:
    arrow, parquet = _pyarrow()
    schema = _schema(arrow)
    writer = parquet.ParquetWriter(path, schema)
    rows: list[dict[str, Any]] = []

    def flush() -> None:
        writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
        rows.clear()

    def write(request: RequestRecord, replica: int) -> None:
        rows.append(_log_row(request, replica))
        if len(rows) >= _ROWS:
            flush()

    with writer:
        yield write
        flush()


def _log_row(request: RequestRecord, replica: int) -> dict[str, Any]:
    return {"replica": replica, **asdict(request)}


def _schema(arrow: ModuleType) -> Any:
    text, whole, seconds = arrow.string(), arrow.int64(), arrow.float64()
    types = {"float": seconds, "float | None": seconds, "int": whole, "str": text}
    fields = RequestRecord.__dataclass_fields__.values()
    return arrow.schema(
        [("replica", whole), *((field.name, types[str(field.type)]) for field in fields)]
    )


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SettingsError(
            "a Parquet file needs pyarrow, which is not installed; pip install 'paged-core[lab]', "
            "or name a file that ends with .jsonl"
        ) from error
    return pyarrow, pyarrow.parquet


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


Seed = Annotated[int, typer.Option(min=0, help="Of the workload, and of the engine's own draws.")]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, help="Engines behind a --router (default: one engine alone)."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes that share the replicas (default: one per core, 4 at most, with 16 "
        "replicas or more each).",
    ),
]
Requests = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a line for each request, as JSON or, by its suffix, to .parquet.",
        callback=check_writable,
    ),
]


def simulate_command(
    given: Given,
    workload: WorkloadName,
    seed: Seed = 0,
    real: Real = False,
    replicas: Replicas = None,
    workers: Workers = None,
    requests: Requests = None,
    slo_ttft_ms: Limit = None,
    slo_tpot_ms: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Serve a workload once on a virtual clock, and say what it would have taken.

    The scheduler, the allocator and the policies are those of a real engine. A step takes the time
    that --cost-model predicts. With --real a model runs instead, on the executor that the settings
    name, and arrivals are waited for. --replicas simulates a cluster, in memory that does not grow
    with the number of requests.
    """
    resolved = given.resolve(executor_layer("simulate", real=real))
    settings = resolved.settings
    check_executor(settings, real=real)
    spec = workload_spec(workload)
    _check_log(requests, workload)
    slo = ServiceLevel(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms)
    if replicas is None and workers is not None:
        raise SettingsError("--workers: they share the replicas of a cluster; give --replicas too")
    if replicas is None and requests is None and dict(settings)["router"] is None:
        _serve_alone(resolved, spec, seed, slo, as_json=as_json)
        return
    if real:
        raise SettingsError("--real: a cluster is simulated; leave --real out")
    started = _cpu_seconds()
    with counting("requests") as advance, request_log(requests) as on_request:
        record = simulate_cluster(
            settings,
            resolved.registry,
            spec.build(),
            seed,
            num_replicas=replicas or 1,
            num_workers=num_workers(replicas or 1, workers),
            slo=slo,
            on_request=on_request,
            advance=advance,
        )
    seconds = _cpu_seconds() - started
    router = router_options(settings, resolved.registry).name
    if as_json:
        head = {"workload": spec.written(), "seed": seed, "executor": settings.executor.name}
        document = cluster_document(record, router)
        print_json(head | document | {"cpu_seconds": round(seconds, 3)})
    else:
        print_cluster(f"{spec.name}, seed {seed}", record, router, seconds)


def _check_log(path: Path | None, workload: str) -> None:
    """Check that the file of requests is not that of the workload."""
    if path is not None and path.exists() and path.resolve() == Path(workload).resolve():
        raise SettingsError(f"--requests {path}: that is the workload; name another file")


def _cpu_seconds() -> float:
    """Return the processor time of this process and of those that it started and that ended."""
    return sum(times()[:4])


def _serve_alone(
    resolved: Resolved, spec: WorkloadSpec, seed: int, slo: ServiceLevel, *, as_json: bool
) -> None:
    """Serve a workload on one engine, and print its measures."""
    settings = resolved.settings
    started = _cpu_seconds()
    with counting("requests") as advance:
        record = run_workload(settings, resolved.registry, spec.build(), seed, advance=advance)
    seconds = _cpu_seconds() - started
    found = measures(record, slo)
    if as_json:
        print_json(
            {
                "workload": spec.written(),
                "seed": seed,
                "executor": settings.executor.name,
                "requests": len(record.requests),
                "measures": found,
                "failure": record.failure,
                "cpu_seconds": round(seconds, 3),
            }
        )
    else:
        print_run(f"{spec.name}, seed {seed}", settings, record, found, seconds)
