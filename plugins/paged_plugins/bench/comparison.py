"""Runs workloads on several engines in turns and compares their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from paged_core.errors import EngineError
from paged_plugins.bench.peer_process import PeerProcess
from paged_plugins.bench.peers.table import OURS
from paged_plugins.bench.workloads import Item, Workload

_ANY_TOKEN = 1 << 31


def warm_up(engines: Sequence[PeerProcess], tell: Callable[[str], None]) -> None:
    """Run two short requests on each engine.

    Args:
        tell: called with a message for each engine that is not idle afterwards.
    """
    for engine in engines:
        engine.run([Item(list(range(3, 27)), 4)] * 2)
        if not engine.settle():
            tell(
                f"{engine.name} uses the processor while it waits for requests, which slows down "
                "the others; compare with it alone"
            )


def compare(
    workload: Workload,
    engines: Sequence[PeerProcess],
    repeats: int,
    advance: Callable[[], None],
) -> dict[str, Any]:
    """Run a workload on all engines, in turns; the order rotates from repeat to repeat.

    Args:
        engines: our own engine first.
        advance: called once for each run.

    Returns:
        A row: the workload, and ``contenders``, an entry per engine with the medians over the
        repeats.

    Raises:
        EngineError: an engine failed, or generated a wrong number of tokens.
    """
    elapsed: dict[str, list[float]] = {engine.name: [] for engine in engines}
    peaks: dict[str, int] = {}
    outputs: dict[str, list[list[int]]] = {}
    for turn in range(repeats):
        items = workload.items(turn, vocab_size=engines[0].vocab_size or _ANY_TOKEN)
        first = turn % len(engines)
        for engine in [*engines[first:], *engines[:first]]:
            answer = engine.run(items)
            _check_lengths(engine.name, answer["outputs"], items)
            elapsed[engine.name].append(answer["elapsed"])
            peaks[engine.name] = answer["peak_memory"]
            outputs.setdefault(engine.name, answer["outputs"])
            engine.settle()
            advance()
    medians = {name: median(seconds) for name, seconds in elapsed.items()}
    num_output = sum(item.num_output for item in items)
    return {
        "workload": workload.name,
        "requests": len(items),
        "output_tokens": num_output,
        "contenders": [
            {
                "name": engine.name,
                "version": engine.version,
                "start_s": round(engine.start_seconds, 2),
                "elapsed_s": [round(seconds, 4) for seconds in elapsed[engine.name]],
                "output_tokens_per_s": round(num_output / medians[engine.name], 1),
                "peak_memory_bytes": peaks[engine.name],
                "ratio": round(medians[engine.name] / medians[OURS.name], 3),
                "same_tokens": _share(outputs[engine.name], outputs[OURS.name]),
            }
            for engine in engines
        ],
        **_against_best(medians),
    }


def _against_best(medians: dict[str, float]) -> dict[str, Any]:
    """Return the fastest other engine, and our speed as a multiple of its speed."""
    others = {name: seconds for name, seconds in medians.items() if name != OURS.name}
    if not others:
        return {"best_peer": None, "ratio_to_best": None}
    best = min(others, key=lambda name: others[name])
    return {"best_peer": best, "ratio_to_best": round(others[best] / medians[OURS.name], 3)}


def _check_lengths(name: str, outputs: Sequence[list[int]], items: Sequence[Item]) -> None:
    for output, item in zip(outputs, items, strict=True):
        if len(output) != item.num_output:
            raise EngineError(
                f"{name} generated {len(output)} tokens instead of {item.num_output}, so its time "
                "cannot be compared; leave it out with --peer, or update it"
            )


def _share(outputs: Sequence[list[int]], ours: Sequence[list[int]]) -> float:
    """Return the share of requests with the same tokens; in 16-bit dtypes it is rarely 1."""
    same = sum(one == other for one, other in zip(outputs, ours, strict=True))
    return round(same / len(ours), 3)
