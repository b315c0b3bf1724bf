"""``paged-core bench compare``: this engine and others on the same requests, in turns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import psutil
import typer

from paged_core.cli.options import Given
from paged_core.errors import SettingsError
from paged_core.settings import EngineSettings
from paged_plugins.bench.comparison import compare, warm_up
from paged_plugins.bench.comparison_table import print_comparison
from paged_plugins.bench.drawn_options import (
    InputLength,
    NumRequests,
    OutputLength,
    SharedPrefix,
    drawing,
)
from paged_plugins.bench.peer_choice import Choice, installed_peers, named_peers
from paged_plugins.bench.peer_process import PeerProcess
from paged_plugins.bench.peer_python import PeerPython
from paged_plugins.bench.peers.peer_engine import Task
from paged_plugins.bench.peers.table import OURS, PEERS
from paged_plugins.bench.progress import progress
from paged_plugins.bench.rates import measure_rates
from paged_plugins.bench.throughput_command import chosen_workloads
from paged_plugins.bench.turns import longest
from paged_plugins.bench.workloads import NAMED, Workload

_LENGTH_STEP = 1024
_CACHE_GIB = 4
_PEERS = "; ".join(f"{name}: {peer.summary}" for name, peer in PEERS.items())


def compare_command(
    given: Given,
    workload: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="W1 to W8, as in bench throughput (default: all)."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=PYTHON]",
            help="May be repeated; PYTHON is the interpreter of another virtual environment that "
            "has the peer (default: all peers installed in this one that have their checkpoint "
            f"beside the model). {_PEERS}.",
        ),
    ] = None,
    num_requests: NumRequests = None,
    input_len: InputLength = None,
    output_len: OutputLength = None,
    shared_prefix: SharedPrefix = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs to take the median of.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per workload.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the same JSON to a file.")
    ] = None,
) -> None:
    """Compare with other engines on the same model, token ids and number of tokens.

    Each engine runs in its own process, all are loaded before the first is measured, and they take
    turns within every repeat, so that other load on the machine affects all of them alike. Two
    short requests run as a warm-up. Conversations run turn by turn: all first turns, then all
    second turns. Give --model and --dtype; --threads and --kv-cache-memory apply to the others too,
    all other settings to this engine alone.
    """
    settings = given.resolve().settings
    _check(settings.model, settings.dtype)
    described = drawing(num_requests, input_len, output_len, shared_prefix)
    chosen = chosen_workloads(workload, described) or list(NAMED.values())
    tell = partial(typer.echo, err=True)
    if peer:
        peers = named_peers(peer, settings.model, settings.dtype)
    else:
        peers = installed_peers(settings.model, settings.dtype, tell)
    task = task_for(settings, chosen)
    rows = []
    try:
        with ExitStack() as stack:
            lines = [sys.stdout] if as_json else []
            if output is not None:
                lines.append(stack.enter_context(_open(output)))
            engines = [
                stack.enter_context(PeerProcess(some.peer, task, some.python))
                for some in [Choice(OURS, PeerPython()), *peers]
            ]
            warm_up(engines, tell)
            for row in _rows(settings, chosen, engines, repeats):
                rows.append(row)
                for file in lines:
                    file.write(json.dumps(row) + "\n")
                    file.flush()
    finally:  # print the rows measured so far even if a later run failed
        if rows and not as_json:
            print_comparison(rows)


def _rows(
    settings: EngineSettings,
    workloads: Sequence[Workload],
    engines: Sequence[PeerProcess],
    repeats: int,
) -> Iterator[dict[str, Any]]:
    """Yield the result row of each workload as soon as it is measured."""
    with progress(len(workloads) * repeats * len(engines), "comparing") as advance:
        for workload in workloads:
            row = compare(workload, engines, repeats, advance)
            row |= {"model": settings.model, "dtype": settings.dtype, "repeats": repeats}
            row["read_bytes_per_s"] = round(measure_rates(settings.dtype, "cpu").read)
            yield row


def _open(output: Path) -> TextIO:
    """Open the output file; called before anything is measured.

    Raises:
        SettingsError: the file cannot be written.
    """
    try:
        return output.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--output {output}: {error.strerror}") from error


def _check(model: str, dtype: str) -> None:
    if model == "demo":
        raise SettingsError("--model demo is known to this engine only; give a folder or a hub id")
    if dtype == "auto":
        raise SettingsError(
            "--dtype auto may select a different dtype in each engine; give bfloat16 or float32"
        )


def task_for(settings: EngineSettings, workloads: Sequence[Workload]) -> Task:
    """Return the task of all engines; ``max_model_len`` is the longest request, rounded up to a
    multiple of 1,024 tokens.
    """
    length = max(longest(workload.items()) for workload in workloads)
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
        settings=settings.model_dump(mode="json", exclude_unset=True),
    )


def _threads() -> int:
    """Physical cores that this process may use, counted as the engine does."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(psutil.cpu_count(logical=False) or 1, usable or 1)
