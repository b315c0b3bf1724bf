"""``paged-core bench compare``: this engine and others on the same requests, in turns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import psutil
import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_table
from paged_core.errors import EngineError, SettingsError
from paged_plugins.bench.machine import machine
from paged_plugins.bench.peer_process import PeerProcess
from paged_plugins.bench.peers import OURS, PEERS, Peer, Task
from paged_plugins.bench.progress import progress
from paged_plugins.bench.roofline import measure_rates
from paged_plugins.bench.throughput_command import chosen_workloads
from paged_plugins.bench.workloads import NAMED, Item, Workload

_MAX_LEN = 1024
_MANY = 1 << 31
_PEERS = "; ".join(f"{name}: {peer.summary}" for name, peer in PEERS.items())


def compare_command(
    given: Given,
    workload: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="W1 to W4, as in bench throughput (default: all)."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help=f"May be repeated (default: all that are installed). {_PEERS}."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="The median of so many runs.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per workload.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the same JSON to a file.")
    ] = None,
) -> None:
    """Compare with other engines on the same model, token ids and number of tokens.

    Each runs in a process of its own, all are loaded before the first is measured, and they take
    turns within every repeat, so that what else the machine does hits all of them alike. Two short
    requests run first. Give --model and --dtype; other settings are those of this engine alone.
    """
    settings = given.resolve().settings
    _check(settings.model, settings.dtype)
    peers = [_named(name) for name in peer or [p.name for p in PEERS.values() if p.installed]]
    chosen = chosen_workloads(workload, None) or list(NAMED.values())
    rows = []
    with ExitStack() as stack:
        task = Task(
            model=settings.model,
            dtype=settings.dtype,
            threads=settings.threads or _threads(),
            max_model_len=_MAX_LEN,
            settings=settings.model_dump(mode="json", exclude_unset=True),
        )
        contenders = [stack.enter_context(PeerProcess(p, task)) for p in [OURS, *peers]]
        for contender in contenders:
            contender.run([Item(list(range(3, 27)), 4)] * 2)
        total = len(chosen) * repeats * len(contenders)
        with progress(total, "comparing") as advance:
            for some in chosen:
                rows.append(_compare(some, contenders, repeats, advance))
                rows[-1] |= {"model": settings.model, "dtype": settings.dtype, "repeats": repeats}
                rows[-1]["read_bytes_per_s"] = round(measure_rates(settings.dtype, "cpu").read)
                if as_json:
                    sys.stdout.write(json.dumps(rows[-1]) + "\n")
                    sys.stdout.flush()
    if output is not None:
        output.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    if not as_json:
        _print(rows)


def _check(model: str, dtype: str) -> None:
    if model == "demo":
        raise SettingsError("--model demo is known to this engine only; give a folder or a hub id")
    if dtype == "auto":
        raise SettingsError(
            "--dtype auto may mean another format to each engine; give bfloat16 or float32"
        )


def _named(name: str) -> Peer:
    if name not in PEERS:
        raise SettingsError(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
    if not PEERS[name].installed:
        raise SettingsError(
            f"peer {name!r} needs the package {PEERS[name].package}, which is not installed"
        )
    return PEERS[name]


def _threads() -> int:
    """Physical cores that this process may use, as the engine counts them by itself."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(psutil.cpu_count(logical=False) or 1, usable or 1)


def _compare(
    workload: Workload,
    contenders: Sequence[PeerProcess],
    repeats: int,
    advance: Callable[[], None],
) -> dict[str, Any]:
    """Let all run a workload, in turns; who begins changes from repeat to repeat."""
    elapsed: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    peaks: dict[str, int] = {}
    outputs: dict[str, list[list[int]]] = {}
    for turn in range(repeats):
        items = workload.items(turn, vocab_size=contenders[0].vocab_size or _MANY)
        first = turn % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            answer = contender.run(items)
            _check_lengths(contender.name, answer["outputs"], items)
            elapsed[contender.name].append(answer["elapsed"])
            peaks[contender.name] = answer["peak_memory"]
            outputs.setdefault(contender.name, answer["outputs"])
            advance()
    ours = median(elapsed[OURS.name])
    num_output = sum(item.num_output for item in workload.items())
    return {
        "workload": workload.name,
        "requests": len(items),
        "output_tokens": num_output,
        "contenders": [
            {
                "name": contender.name,
                "version": contender.version,
                "start_s": round(contender.start_seconds, 2),
                "elapsed_s": [round(seconds, 4) for seconds in elapsed[contender.name]],
                "output_tokens_per_s": round(num_output / median(elapsed[contender.name]), 1),
                "peak_memory_bytes": peaks[contender.name],
                "ratio": round(median(elapsed[contender.name]) / ours, 3),
                "same_tokens": _share(outputs[contender.name], outputs[OURS.name]),
            }
            for contender in contenders
        ],
    }


def _check_lengths(name: str, outputs: Sequence[list[int]], items: Sequence[Item]) -> None:
    for output, item in zip(outputs, items, strict=True):
        if len(output) != item.num_output:
            raise EngineError(f"{name} generated {len(output)} tokens instead of {item.num_output}")


def _share(outputs: Sequence[list[int]], ours: Sequence[list[int]]) -> float:
    """Return the share of requests with the same tokens; in 16 bits it is rarely 1."""
    same = sum(one == other for one, other in zip(outputs, ours, strict=True))
    return round(same / len(ours), 3)


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    computer, first = machine(), rows[0]
    title = (
        f"{first['model']} in {first['dtype']}, median of {first['repeats']}, in turns\n"
        f"{computer['cpu']}, {computer['cores']} cores, {computer['python']}"
    )
    columns = ["workload", "engine", "output tokens/s", "we are faster by", "peak MiB", "start s"]
    print_table(title, columns, _lines(rows))


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[object]]:
    for row in rows:
        for contender in row["contenders"]:
            own = contender["name"] == OURS.name
            yield [
                row["workload"],
                f"{contender['name']} {contender['version']}",
                contender["output_tokens_per_s"],
                "" if own else f"{contender['ratio']:.2f}",
                contender["peak_memory_bytes"] >> 20,
                contender["start_s"],
            ]
