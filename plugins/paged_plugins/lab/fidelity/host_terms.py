"""Seconds of the host that are fitted to served runs, each half of the models by the other half.

The terms of a half were found by ``paged-core lab fidelity --fit`` on its rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from paged_plugins.lab.fidelity.closed_loop import RowTask, Times
from paged_plugins.lab.fidelity.served_rows import ServedRow, measured_options
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.progress import Advance


class HostTerms(NamedTuple):
    """Options of the cost model ``measured`` that no kernel time gives."""

    host_per_step: float
    host_per_sequence: float


HALVES: tuple[tuple[str, ...], tuple[str, ...]] = (
    ("Qwen3-32B", "Llama-3.1-8B", "gpt-oss"),
    ("Llama-3.1-70B", "Qwen3-235B", "MiniMax-M2"),
)
"""Parts of the names of models: each engine's dense models and mixtures are on both sides."""
FITTED: Mapping[str, tuple[HostTerms, HostTerms]] = {
    "vllm": (HostTerms(8e-4, 2e-5), HostTerms(8e-4, 2e-5)),
    "trtllm": (HostTerms(8e-4, 2e-5), HostTerms(8e-4, 2e-5)),
    "sglang": (HostTerms(8e-4, 2e-5), HostTerms(8e-4, 2e-5)),
}
"""By engine, what was found on the first half, and on the second."""


def half_of(model: str) -> int | None:
    """Return the half that a model is in, 0 or 1; ``None``: none, its rows are not fitted to."""
    for half, parts in enumerate(HALVES):
        if any(part in model for part in parts):
            return half
    return None


def terms_to_judge(engine: str, model: str) -> HostTerms:
    """Return the terms that were fitted without a model's half."""
    half = half_of(model)
    return FITTED[engine][1 if half == 0 else 0]


_TRIED = (HostTerms(0.0, 0.0), HostTerms(1e-3, 0.0), HostTerms(0.0, 2e-5))
"""Terms under which each row is simulated: none, and one of each."""
_STEPS, _SEQUENCES = np.linspace(0, 4e-3, 41), np.linspace(0, 8e-5, 41)


def num_fitting_runs(rows: Sequence[ServedRow]) -> int:
    """Return how many simulations a fit to rows takes."""
    return len(_TRIED) * len(rows)


def fit(
    rows: Sequence[ServedRow], folder: Path, runner: Runner, advance: Advance
) -> dict[str, list[HostTerms | None]]:
    """Return the terms of each engine that fit the rows of each half best; ``None``: it has none.

    A row's time per token is taken to grow evenly with each term; the mean absolute logarithm of
    its share in the time that was served is the least.
    """
    tasks = [
        RowTask(row=row, folder=folder, cost_model=measured_options(row, folder) | terms._asdict())
        for row in rows
        for terms in _TRIED
        if row.refusal is None and half_of(row.model) is not None
    ]
    found: dict[str, dict[HostTerms, float]] = {}
    served = {row.id: row for row in rows}
    run = cast("Callable[[Sequence[RowTask]], Iterator[Any]]", runner)
    for ran in run(tasks):
        if isinstance(ran.record, Times):
            terms = HostTerms(*(ran.task.cost_model[name] for name in HostTerms._fields))
            found.setdefault(ran.task.row.id, {})[terms] = ran.record.tpot_ms
        advance()
    lines: dict[tuple[str, int], list[list[float]]] = {}
    for name, times in found.items():
        if len(times) == len(_TRIED):
            row, (base, step, sequence) = served[name], (times[terms] for terms in _TRIED)
            half = cast("int", half_of(row.model))
            slopes = (step - base) / 1e-3, (sequence - base) / 2e-5
            lines.setdefault((row.engine, half), []).append([base, *slopes, row.tpot_ms])
    engines = sorted({engine for engine, _ in lines})
    return {
        engine: [_least(lines[engine, h]) if (engine, h) in lines else None for h in (0, 1)]
        for engine in engines
    }


def _least(lines: list[list[float]]) -> HostTerms:
    """The terms under which the error is least."""
    base, per_step, per_sequence, served = np.array(lines).T

    def error(terms: tuple[float, float]) -> float:
        found = base + terms[0] * per_step + terms[1] * per_sequence
        return float(np.abs(np.log(found / served)).mean())

    step, sequence = min(product(_STEPS.tolist(), _SEQUENCES.tolist()), key=error)
    return HostTerms(round(step, 6), round(sequence, 8))
