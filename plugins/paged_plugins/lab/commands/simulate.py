"""``paged-core simulate``: one run of a workload, and its measures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from os import times
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli import FAILED, OK
from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo, print_json, print_table
from paged_core.errors import SettingsError
from paged_plugins.command_options import check_writable
from paged_plugins.lab.cluster.simulate_cluster import OnRequest, router_options, simulate_cluster
from paged_plugins.lab.commands.load import fit
from paged_plugins.lab.commands.options import (
    Cache,
    Limit,
    Load,
    Real,
    Replicas,
    WorkingSet,
    WorkloadName,
    check_executor,
    executor_layer,
    shares,
)
from paged_plugins.lab.load.fractions import choice_sentences
from paged_plugins.lab.measures import MEASURES, ServiceLevel, measures, value_text
from paged_plugins.lab.runs.queueing import Saturation
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.lab.settings import SIMULATED
from paged_plugins.lab.study.arms import Arm, PlannedArm
from paged_plugins.lab.study.excess import excess_notes
from paged_plugins.lab.study.study import Fractions, Study
from paged_plugins.lab.study.unused import refuse_unused
from paged_plugins.progress import counted, counting, errors_text
from paged_plugins.workloads.named import workload_spec
from paged_plugins.written_files import replacing

_EXTREMES = 3
"""Replicas that are shown of each end."""
_MEMORY = {
    "held_share": "states of tokens",
    "reserved_share": "reserved for tokens to come",
    "internal_share": "internal fragmentation",
    "external_share": "external fragmentation",
}


_Found = dict[str, float]
"""Measures by their names."""


@contextmanager
def request_log(path: Path | None) -> Iterator[OnRequest]:
    """Write requests to a file, as lines of JSON; ``None``: nowhere.

    Yields:
        What is to be called with each request and the number of its replica.

    Raises:
        WriteFailed: the file cannot be written.
    """
    if path is None:
        yield lambda request, replica: None
    else:
        with replacing(path) as file:

            def write(request: RequestRecord, replica: int) -> None:
                file.write(json.dumps({"replica": replica, **asdict(request)}).encode() + b"\n")

            yield write


def _print(title: str, took: str, record: RunRecord, found: _Found) -> None:
    """Print the measures of a run."""
    num_requests, num_failed = len(record.requests), int(found["failed"] + found["refused"])
    echo(title + took if num_failed < num_requests else title)
    if record.num_errors:
        why = errors_text(record.num_errors, num_requests, record.error)
        echo(f"failed: {why}; what follows is of the others, and no measure of these settings")
    if num_refused := num_failed - record.num_errors:
        requests = counted(num_refused, "request")
        echo(f"not served: {requests}, refused or ignored, the first: {record.failure}")
    if cut := [each.num_cut for each in record.requests if each.num_cut]:
        told = f"{counted(len(cut), 'answer')} by {counted(sum(cut), 'token')}"
        echo(f"cut short by the model's length or the cache: {told}")
    if num_failed == num_requests:
        return  # there is nothing to measure
    rows = [
        [MEASURES[name].title, value_text(name, value)]
        for name, value in found.items()
        if name not in _MEMORY
    ]
    print_table("", ["measure", "value"], rows)
    if record.replicas:
        _print_replicas(record)
    else:
        _print_memory(record, found)


def _print_replicas(record: RunRecord) -> None:
    def percent(part: float, whole: float) -> str:
        return f"{100 * part / whole:.1f}%" if whole else "-"

    rows = [
        (
            str(number),
            f"{each.num_requests:,}",
            f"{each.num_generated:,}",
            percent(each.num_cached, each.num_prompt),
            percent(each.busy_seconds, record.totals.elapsed),
        )
        for number, each in sorted(
            enumerate(record.replicas), key=lambda pair: -pair[1].num_generated
        )
    ]
    if len(rows) > 2 * _EXTREMES:
        rows[_EXTREMES:-_EXTREMES] = [("...", "", "", "", "")]
    echo("Replicas by generated tokens, the most first")
    print_table("", ["replica", "requests", "generated tokens", "hit rate", "busy"], rows)


def _print_memory(record: RunRecord, found: _Found) -> None:
    last = record.steps[-1] if record.steps else None
    num_blocks, size = (last.num_blocks, last.block_size) if last else (0, 0)
    echo(f"Memory while busy, of {num_blocks:,} blocks of {size} tokens")
    shares = {use: found[name] for name, use in _MEMORY.items()}
    shares["free"] = max(0.0, 1 - sum(shares.values()))
    print_table("", ["use", "share"], [[use, f"{100 * each:.1f}%"] for use, each in shares.items()])


def _of_replicas(record: RunRecord) -> dict[str, Any]:
    """Return what a document of JSON has of a cluster, beside what it has of each run."""
    return {
        "replicas": [
            {
                "requests": each.num_requests,
                "generated_tokens": each.num_generated,
                "prompt_tokens": each.num_prompt,
                "cached_tokens": each.num_cached,
                "steps": each.num_steps,
                "busy_seconds": each.busy_seconds,
            }
            for each in record.replicas
        ],
    }


Seed = Annotated[int, typer.Option(min=0, help="Of the workload, and of the engine's own draws.")]
Requests = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a line of JSON for each request.",
        callback=check_writable,
    ),
]


def simulate_command(
    given: SettingsArgs,
    workload: WorkloadName,
    seed: Seed = 0,
    real: Real = False,
    replicas: Replicas = None,
    load: Load = None,
    cache: Cache = None,
    working_set: WorkingSet = None,
    requests: Requests = None,
    slo_ttft_ms: Limit = None,
    slo_tpot_ms: Limit = None,
    as_json: AsJson = False,
) -> int:
    """Serve a workload once on a virtual clock, and say what it would have taken.

    The scheduler, the allocator and the policies are those of a real engine. A step takes the time
    that --cost-model predicts. With --real a model runs instead, on the executor that the settings
    name, and arrivals are waited for. --replicas simulates a cluster. The exit status is 1 if a
    request ended with an error, or none was served.
    """
    resolved = given.resolve(
        executor_layer("simulate", given.registry, real=real, replicas=replicas)
    )
    settings = resolved.settings
    check_executor(settings, real=real)
    spec = workload_spec(workload)
    _check_log(requests, workload)
    slo = ServiceLevel(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms)
    is_cluster = replicas is not None or (requests is not None and not real)
    if is_cluster and real:
        raise SettingsError("--real: a cluster is simulated; leave --real out")
    refuse_unused([entry.key for entry in given.options], [settings], resolved.registry, replicas)
    study = Study(
        arms=[PlannedArm(Arm(label="the engine" if replicas is None else "the cluster"), settings)],
        workloads=[spec],
        seeds=[seed],
        num_replicas=replicas,
        fractions=Fractions(load=shares(load), cache=cache, working_set=working_set),
    )
    study.check_fractions()
    for note in (*study.check_workloads(), *excess_notes(study.arms, resolved.registry)):
        echo(note, err=True)
    if len(study.fractions.load) > 1:
        raise SettingsError("--load: one run has one load; give several to `paged-core compare`")
    study = fit(study, resolved.registry, workers=None)
    (task,) = study.tasks()
    spec, settings = task.workload, task.settings
    asked = settings, resolved.registry, spec.build(), seed
    started = _cpu_seconds()
    with counting("requests") as advance, request_log(requests) as on_request:
        if is_cluster:
            record = simulate_cluster(
                *asked, num_replicas=replicas or 1, on_request=on_request, advance=advance
            )
        else:
            record = run_workload(*asked, advance=advance)
            for each in record.requests:
                on_request(each, 0)
    seconds = _cpu_seconds() - started
    found, saturation = measures(record, slo), Saturation.of(record)
    is_served = found["failed"] + found["refused"] < len(record.requests)
    status = OK if is_served and not record.num_errors else FAILED
    document: dict[str, Any] = {"requests": len(record.requests), "measures": found}
    if is_cluster:
        router = router_options(settings, resolved.registry).name
        where = f"{counted(len(record.replicas), 'replica')} behind {router}"
        document = {"router": router, **document, **_of_replicas(record)}
    else:
        where = f"executor {settings.executor.name}"
    if as_json:
        head = {"workload": spec.written(), "seed": seed, "executor": settings.executor.name}
        tail: dict[str, Any] = {"failure": record.failure, "errors": record.num_errors}
        tail |= {"error": record.error, "cpu_seconds": round(seconds, 3)}
        tail |= {"saturation": saturation and saturation.document()}
        tail |= {"chosen": list(study.chosen), "latencies_of": "all"}
        print_json(head | document | tail)
        return status
    took = ""
    if is_cluster or settings.executor.name == SIMULATED:
        took = f", {value_text('makespan_s', found['makespan_s'])} in {seconds:.1f} s"
    title = f"{spec.name}, seed {seed}: {len(record.requests):,} requests on {where}"
    for sentence in choice_sentences(study.chosen, study.arms[0].arm.title):
        echo(sentence)
    _print(title, took, record, found)
    if saturation is not None:
        echo(str(saturation))
    return status


def _check_log(path: Path | None, workload: str) -> None:
    """Check that the file of requests is not that of the workload."""
    if path is not None and path.exists() and path.resolve() == Path(workload).resolve():
        raise SettingsError(f"--requests {path}: that is the workload; name another file")


def _cpu_seconds() -> float:
    """Return the processor time of this process and of those that it started and that ended."""
    return sum(times()[:4])
