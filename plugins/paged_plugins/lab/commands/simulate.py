"""``paged-core simulate``: one run of a workload, and its measures."""

from __future__ import annotations

from os import times
from pathlib import Path
from typing import Annotated

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json
from paged_core.errors import SettingsError
from paged_core.settings import Resolved
from paged_plugins.command_options import check_writable
from paged_plugins.lab.cluster.request_log import request_log
from paged_plugins.lab.cluster.simulate_cluster import router_options, simulate_cluster
from paged_plugins.lab.cluster.workers import num_workers
from paged_plugins.lab.commands.options import AsJson, Limit, WorkloadName
from paged_plugins.lab.commands.real_option import Real, check_executor, executor_layer
from paged_plugins.lab.commands.shown_cluster import cluster_document, print_cluster
from paged_plugins.lab.commands.shown_run import print_run
from paged_plugins.lab.measures.run_measures import measures
from paged_plugins.lab.measures.service_level import ServiceLevel
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.progress import counting
from paged_plugins.workloads.named import workload_spec
from paged_plugins.workloads.spec import WorkloadSpec

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
