"""Runs workloads on several engines, in turns or one after another; compares their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

from paged_core.errors import EngineError
from paged_plugins.bench.peers import OURS, PeerProcess
from paged_plugins.bench.workloads import Workload, by_turn
from paged_plugins.workloads.request import WorkloadRequest

_ANY_TOKEN = 1 << 31


def warm_up(engines: Sequence[PeerProcess], tell: Callable[[str], None]) -> None:
    """Run two short requests on each engine.

    Args:
        tell: called with a message for each engine that is not idle afterwards.
    """
    prompt = (range(3, 27),)
    short = [WorkloadRequest(id=str(i), prompt=prompt, output=4) for i in range(2)]
    for engine in engines:
        engine.run(short)
        if not engine.settle():
            tell(
                f"{engine.name} uses the processor while it waits for requests, which slows down "
                "the others; compare with it alone"
            )


@dataclass(slots=True)
class EngineRuns:
    """What one engine did with a workload, or why it could not."""

    name: str
    version: str | None = None
    start_seconds: float = 0.0
    cache_written: bool | None = None
    """Whether all of its cache was written before anything was measured; ``None``: not known."""
    elapsed: list[float] = field(default_factory=list)
    """Seconds of each repeat."""
    peak_memory: int = 0
    """Bytes."""
    outputs: list[list[int]] = field(default_factory=list)
    """The tokens of the first repeat."""
    error: str | None = None

    @classmethod
    def of(cls, engine: PeerProcess) -> Self:
        """Begin the runs of an engine."""
        return cls(engine.name, engine.version, engine.start_seconds, engine.cache_written)

    def add(self, engine: PeerProcess, firsts: Sequence[WorkloadRequest]) -> None:
        """Run one repeat.

        Raises:
            EngineError: the engine failed, or generated a wrong number of tokens.
        """
        answer = engine.run(firsts)
        _check_lengths(engine.name, answer["outputs"], firsts)
        self.elapsed.append(answer["elapsed"])
        self.peak_memory = answer["peak_memory"]
        self.outputs = self.outputs or answer["outputs"]


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
        As :func:`row_of`.

    Raises:
        EngineError: an engine failed, or generated a wrong number of tokens.
    """
    runs = {engine.name: EngineRuns.of(engine) for engine in engines}
    for turn in range(repeats):
        firsts = workload.requests(turn, vocab_size=engines[0].vocab_size or _ANY_TOKEN)
        first = turn % len(engines)
        for engine in [*engines[first:], *engines[:first]]:
            runs[engine.name].add(engine, firsts)
            engine.settle()
            advance()
    return row_of(workload, list(runs.values()))


def run_alone(
    engine: PeerProcess,
    workloads: Sequence[Workload],
    repeats: int,
    vocab_size: int | None,
    advance: Callable[[], None],
) -> list[EngineRuns]:
    """Run all workloads on one engine, while no other is loaded.

    Args:
        advance: called once for each run.

    Raises:
        EngineError: the engine failed, or generated a wrong number of tokens.
    """
    found = []
    for workload in workloads:
        runs = EngineRuns.of(engine)
        for turn in range(repeats):
            runs.add(engine, workload.requests(turn, vocab_size=vocab_size or _ANY_TOKEN))
            advance()
        found.append(runs)
    return found


def row_of(workload: Workload, runs: Sequence[EngineRuns]) -> dict[str, Any]:
    """Return the workload, and ``contenders``, an entry per engine with the medians of its runs.

    Args:
        runs: of our own engine first; another one may have failed.
    """
    requests = [request for request, _ in by_turn(workload.requests())]
    medians = {one.name: median(one.elapsed) for one in runs if one.error is None}
    num_output = sum(request.output for request in requests)

    def entry(one: EngineRuns) -> dict[str, Any]:
        if one.error is not None:
            return {"name": one.name, "version": one.version, "error": one.error}
        return {
            "name": one.name,
            "version": one.version,
            "start_s": round(one.start_seconds, 2),
            "cache_written": one.cache_written,
            "elapsed_s": [round(seconds, 4) for seconds in one.elapsed],
            "output_tokens_per_s": round(num_output / medians[one.name], 1),
            "peak_memory_bytes": one.peak_memory,
            "ratio": round(medians[one.name] / medians[OURS.name], 3),
            "same_tokens": _share(one.outputs, runs[0].outputs),
        }

    return {
        "workload": workload.name,
        "requests": len(requests),
        "output_tokens": num_output,
        "contenders": [entry(one) for one in runs],
        **_against_best(medians),
    }


def _against_best(medians: dict[str, float]) -> dict[str, Any]:
    """Return the fastest other engine, and our speed as a multiple of its speed."""
    others = {name: seconds for name, seconds in medians.items() if name != OURS.name}
    if not others:
        return {"best_peer": None, "ratio_to_best": None}
    best = min(others, key=lambda name: others[name])
    return {"best_peer": best, "ratio_to_best": round(others[best] / medians[OURS.name], 3)}


def _check_lengths(
    name: str, outputs: Sequence[list[int]], firsts: Sequence[WorkloadRequest]
) -> None:
    for output, (request, _) in zip(outputs, by_turn(firsts), strict=True):
        if len(output) != request.output:
            raise EngineError(
                f"{name} generated {len(output)} tokens instead of {request.output}, so its time "
                "cannot be compared; leave it out with --peer, or update it"
            )


def _share(outputs: Sequence[list[int]], ours: Sequence[list[int]]) -> float:
    """Return the share of requests with the same tokens; rarely 1 in 16-bit dtypes, and where
    tokens are sampled."""
    same = sum(one == other for one, other in zip(outputs, ours, strict=True))
    return round(same / len(ours), 3)
