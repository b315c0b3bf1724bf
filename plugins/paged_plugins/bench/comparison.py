"""Lets contenders run workloads in turns, and puts what they took side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from paged_core.errors import EngineError
from paged_plugins.bench.peer_process import PeerProcess
from paged_plugins.bench.peers.table import OURS
from paged_plugins.bench.workloads import Item, Workload

_ANY_TOKEN = 1 << 31


def warm_up(contenders: Sequence[PeerProcess], tell: Callable[[str], None]) -> None:
    """Let each run two short requests.

    Args:
        tell: called with a line for each that does not rest afterwards.
    """
    for contender in contenders:
        contender.run([Item(list(range(3, 27)), 4)] * 2)
        if not contender.settle():
            tell(
                f"{contender.name} uses the processor while it waits for requests, which slows "
                "the others down; compare with it alone"
            )


def compare(
    workload: Workload,
    contenders: Sequence[PeerProcess],
    repeats: int,
    advance: Callable[[], None],
) -> dict[str, Any]:
    """Let all run a workload, in turns; the one that begins changes from repeat to repeat.

    Args:
        contenders: our own engine first.
        advance: called once for each run.

    Returns:
        A row: what the workload is, and ``contenders``, with the medians over the repeats.

    Raises:
        EngineError: one of them failed, or generated another number of tokens.
    """
    elapsed: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    peaks: dict[str, int] = {}
    outputs: dict[str, list[list[int]]] = {}
    for turn in range(repeats):
        items = workload.items(turn, vocab_size=contenders[0].vocab_size or _ANY_TOKEN)
        first = turn % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            answer = contender.run(items)
            _check_lengths(contender.name, answer["outputs"], items)
            elapsed[contender.name].append(answer["elapsed"])
            peaks[contender.name] = answer["peak_memory"]
            outputs.setdefault(contender.name, answer["outputs"])
            contender.settle()
            advance()
    medians = {name: median(seconds) for name, seconds in elapsed.items()}
    num_output = sum(item.num_output for item in items)
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
                "output_tokens_per_s": round(num_output / medians[contender.name], 1),
                "peak_memory_bytes": peaks[contender.name],
                "ratio": round(medians[contender.name] / medians[OURS.name], 3),
                "same_tokens": _share(outputs[contender.name], outputs[OURS.name]),
            }
            for contender in contenders
        ],
        **_against_best(medians),
    }


def _against_best(medians: dict[str, float]) -> dict[str, Any]:
    """Return the fastest of the others, and how many times its speed is ours."""
    others = {name: seconds for name, seconds in medians.items() if name != OURS.name}
    if not others:
        return {"best_peer": None, "ratio_to_best": None}
    best = min(others, key=lambda name: others[name])
    return {"best_peer": best, "ratio_to_best": round(others[best] / medians[OURS.name], 3)}


def _check_lengths(name: str, outputs: Sequence[list[int]], items: Sequence[Item]) -> None:
    for output, item in zip(outputs, items, strict=True):
        if len(output) != item.num_output:
            raise EngineError(
                f"{name} generated {len(output)} tokens instead of {item.num_output}, so that "
                "nothing can be compared; leave it out with --peer, or update it"
            )


def _share(outputs: Sequence[list[int]], ours: Sequence[list[int]]) -> float:
    """Return the share of requests with the same tokens; in 16 bits it is rarely 1."""
    same = sum(one == other for one, other in zip(outputs, ours, strict=True))
    return round(same / len(ours), 3)
