"""Seconds of the host that are fitted to served runs of half of the models.

They were found by ``paged-core lab fidelity --engine vllm --model Qwen3-32B --rows 8 --fit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    ("Qwen3-32B", "gpt-oss"),
    ("Llama-3.1-70B", "Llama-3.1-8B", "Qwen3-235B", "MiniMax-M2"),
)
"""Parts of the names of models: those that the terms are fitted to, and those that they are not. A
dense model and a mixture are on both sides."""
FITTED = HostTerms(1.8e-3, 4e-5)
"""Found by runs of vLLM 0.12, which plans no step ahead; where one does, the host is hidden."""


def is_fitted(model: str) -> bool:
    """Return whether the terms are fitted to runs of a model."""
    return any(part in model for part in HALVES[0])


_TRIED = (HostTerms(0.0, 0.0), HostTerms(1e-3, 0.0), HostTerms(0.0, 2e-5))
"""Terms under which each row is simulated: none, and one of each."""
_STEPS, _SEQUENCES = np.linspace(0, 4e-3, 41), np.linspace(0, 8e-5, 41)


def num_fitting_runs(rows: Sequence[ServedRow]) -> int:
    """Return how many simulations a fit to rows takes."""
    return len(_TRIED) * sum(is_fitted(row.model) for row in rows)


def fit(
    rows: Sequence[ServedRow], folder: Path, runner: Runner, advance: Advance
) -> dict[str, HostTerms]:
    """Return the terms of each engine that fit the rows of models that are fitted to best.

    A row's time per token is taken to grow evenly with each term; the mean absolute logarithm of
    its share in the time that was served is the least.
    """
    tasks = [
        RowTask(row=row, folder=folder, cost_model=measured_options(row, folder) | terms._asdict())
        for row in rows
        for terms in _TRIED
        if is_fitted(row.model)
    ]
    found: dict[str, dict[HostTerms, float]] = {}
    run = cast("Callable[[Sequence[RowTask]], Iterator[Any]]", runner)
    for ran in run(tasks):
        if isinstance(ran.record, Times):
            terms = HostTerms(*(ran.task.cost_model[name] for name in HostTerms._fields))
            found.setdefault(ran.task.row.id, {})[terms] = ran.record.tpot_ms
        advance()
    lines: dict[str, list[list[float]]] = {}
    for row in rows:
        times = found.get(row.id, {})
        if len(times) == len(_TRIED):
            base, step, sequence = (times[terms] for terms in _TRIED)
            slopes = (step - base) / 1e-3, (sequence - base) / 2e-5
            lines.setdefault(row.engine, []).append([base, *slopes, row.tpot_ms])
    return {engine: _least(each) for engine, each in sorted(lines.items())}


def _least(lines: list[list[float]]) -> HostTerms:
    """The terms under which the error is least."""
    base, per_step, per_sequence, served = np.array(lines).T

    def error(terms: tuple[float, float]) -> float:
        found = base + terms[0] * per_step + terms[1] * per_sequence
        return float(np.abs(np.log(found / served)).mean())

    step, sequence = min(product(_STEPS.tolist(), _SEQUENCES.tolist()), key=error)
    return HostTerms(round(step, 6), round(sequence, 8))
