"""``paged-core bench communicator``: the latency of exchanging tensors between ranks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Annotated, Any
from uuid import uuid4

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import print_table
from paged_core.engine.contexts import CommunicatorContext
from paged_core.errors import EngineError, SettingsError
from paged_core.interfaces.communicator import RankGroup
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.processes.channel import ANSWER, ERROR, free_port
from paged_core.processes.child import PythonChild
from paged_core.processes.child_main import Parent
from paged_core.processes.failures import error_of, told
from paged_plugins.bench.device import machine, machine_line
from paged_plugins.command_options import JsonFile, report
from paged_plugins.progress import progress

_OPERATIONS = ("all_reduce", "all_gather", "broadcast")
_SIZES = ("256", "4096", "65536", "1048576")
_TIMEOUT = 60.0
_TARGET = "paged_plugins.bench.communicator_command:rank_main"


def communicator_command(
    given: SettingsArgs,
    communicators: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Communicators, comma-separated or repeated (default: all)."
        ),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BYTES",
            help="Sizes of a rank's tensor, comma-separated or repeated "
            f"(default: {','.join(_SIZES)}).",
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    dtype: Annotated[str, typer.Option(help="Of the tensors, as torch names it.")] = "bfloat16",
    repeats: Annotated[int, typer.Option(min=1, help="Calls of each size.")] = 1000,
    pin: Annotated[
        bool, typer.Option(help="Pin each rank to a core, where there are enough.")
    ] = True,
    as_json: AsJson = False,
    output: JsonFile = None,
) -> None:
    """Measure how long ranks take to exchange tensors: microseconds, median and 99th percentile.

    Each communicator that can be used here connects as many processes; rank 0's calls are timed,
    one after another.
    """
    registry = given.registry
    named = [name for some in communicators or () for name in some.split(",") if name]
    chosen = [
        registry.get("communicator", name).name for name in named or registry.of("communicator")
    ]
    numbers = _sizes(sizes or _SIZES)
    rows, refused = list[dict[str, Any]](), dict[str, str]()
    with progress(len(chosen), "measuring") as advance:
        for name in dict.fromkeys(chosen):
            reason = registry.get("communicator", name).unavailable_reason()
            if reason is None:
                job = {
                    "name": name,
                    "sizes": numbers,
                    "dtype": dtype,
                    "repeats": repeats,
                    "pin": pin,
                }
                rows += _measure(job, ranks)
            elif named:
                raise SettingsError(f"communicator {name!r} cannot be used here: {reason}")
            else:
                refused[name] = reason
            advance()
    found = {
        "machine": machine(),
        "ranks": ranks,
        "dtype": dtype,
        "repeats": repeats,
        "pinned": pin,
        "rows": rows,
        "refused": refused,
    }
    report(found, output, as_json, _print)


def _sizes(given: Sequence[str]) -> list[int]:
    words = [word for some in given for word in some.split(",") if word]
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 16:
        raise SettingsError(f"--sizes takes numbers of bytes, 16 at least, not {' '.join(words)!r}")
    return numbers


def _measure(job: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """Start the ranks, and return what rank 0 measured.

    Raises:
        SettingsError: a rank failed; the message says how.
    """
    port = free_port("127.0.0.1")
    group = {"name": uuid4().hex, "host": "127.0.0.1", "port": port, "timeout": _TIMEOUT}
    children = [
        PythonChild(_TARGET, job, group, rank, ranks, name=f"rank {rank}") for rank in range(ranks)
    ]
    try:
        said = [_answer(child) for child in children]
    finally:
        for child in children:
            child.close()
    for rank, (kind, content) in enumerate(said):
        if kind == ERROR:
            reason = str(error_of(content))
            raise SettingsError(f"communicator {job['name']!r}, rank {rank}: {reason}")
    rows: list[dict[str, Any]] = json.loads(said[0][1])
    return rows


def _answer(child: PythonChild) -> tuple[bytes, bytes]:
    try:
        return child.channels[0].receive()
    except (EOFError, OSError):
        how, _ = child.how_it_ended()
        return ERROR, told(EngineError(f"{child.name} {how}"))


def rank_main(parent: Parent) -> None:
    """Be a rank: measure, and answer with the rows as JSON."""
    job, group, rank, size = parent.arguments
    try:
        rows = list(_rows(job, RankGroup(**group), rank, size))
    except Exception as error:  # noqa: BLE001 - said by the process that asked
        parent.channels[0].send(ERROR, told(error))
    else:
        parent.channels[0].send(ANSWER, json.dumps(rows).encode())


def _rows(job: dict[str, Any], group: RankGroup, rank: int, size: int) -> Iterator[dict[str, Any]]:
    import torch

    name, dtype = job["name"], getattr(torch, job["dtype"])
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    if job["pin"] and len(cores) >= size:
        os.sched_setaffinity(0, {cores[rank]})
    device = f"cuda:{rank}" if name == "nccl" else "cpu"
    registry = Registry.discover()
    options = registry.get("communicator", name).settings.model_validate({})
    context = CommunicatorContext(group=group, rank=rank, size=size, device=device)
    made = make_component(registry, "communicator", options, context)
    try:
        for operation in _OPERATIONS:
            for num_bytes in job["sizes"]:
                tensor = torch.ones(num_bytes // dtype.itemsize, dtype=dtype, device=device)
                call = getattr(made, operation)
                seconds = []
                for _ in range(job["repeats"]):
                    started = perf_counter()
                    call(tensor)
                    if device != "cpu":
                        torch.cuda.synchronize()
                    seconds.append(perf_counter() - started)
                    tensor.fill_(1)
                seconds.sort()
                yield {
                    "communicator": name,
                    "operation": operation,
                    "bytes": num_bytes,
                    "p50_us": round(seconds[len(seconds) // 2] * 1e6, 2),
                    "p99_us": round(seconds[len(seconds) * 99 // 100] * 1e6, 2),
                }
    finally:
        made.close()


def _print(found: dict[str, Any]) -> None:
    title = (
        f"Microseconds of a call between {found['ranks']} processes, of {found['dtype']}\n"
        f"{machine_line(found['machine'])}"
    )
    columns = ["communicator", "operation", "bytes", "p50_us", "p99_us"]
    rows = [[row[column] for column in columns] for row in found["rows"]]
    print_table(title, ["communicator", "operation", "bytes", "p50 us", "p99 us"], rows)
    for name, reason in found["refused"].items():
        typer.echo(f"{name}: not measured: {reason}")
