"""Seconds of the host that are fitted to served runs of half of the dense models.

``paged-core lab fidelity --fit --engine vllm --model Qwen3-32B --rows 8`` finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paged_plugins.lab.fidelity.closed_loop import RowTask, Times, run_all
from paged_plugins.lab.fidelity.served_rows import ServedRow
from paged_plugins.lab.fidelity.servers import measured_options
from paged_plugins.lab.settings import MeasuredSettings
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.progress import Advance


class HostTerms(NamedTuple):
    """Options of the cost model ``measured`` that no kernel time gives."""

    host_per_step: float
    host_per_sequence: float


DENSE = ("Llama-3.1-70B", "Llama-3.1-8B", "Qwen3-32B")
"""Parts of the names of all dense models that were served by vLLM, in the order of the alphabet."""
HALVES = DENSE[:2], DENSE[2:]
FITTED = HostTerms(*(MeasuredSettings.model_fields[each].default for each in HostTerms._fields))
"""Terms of the second half, by which all other runs are judged: the defaults."""


def half_of(row: ServedRow) -> int | None:
    """Return the place of the half that a run belongs to; ``None``: mixtures, and other engines."""
    if row.engine == "vllm":
        for place, half in enumerate(HALVES):
            if any(part in row.model for part in half):
                return place
    return None


def is_fitted(row: ServedRow) -> bool:
    """Return whether ``FITTED`` may have seen a run, so that it is not judged by it."""
    return half_of(row) == 1


_STEP, _SEQUENCE = 1e-3, 2e-5
_TRIED = (HostTerms(0.0, 0.0), HostTerms(_STEP, 0.0), HostTerms(0.0, _SEQUENCE))
"""Terms under which each row is simulated: none, and one of each."""
_STEPS, _SEQUENCES = np.linspace(0, 4e-3, 41), np.linspace(0, 8e-5, 41)


def num_fitting_runs(rows: Sequence[ServedRow]) -> int:
    """Return how many simulations a fit to rows takes."""
    return len(_TRIED) * sum(half_of(row) is not None for row in rows)


class Fit(NamedTuple):
    """Terms of a half, and how well they are known."""

    models: tuple[str, ...]
    terms: HostTerms
    runs: int
    runs_that_tell: int
    """Runs whose time per token grows by at least a tenth of each term; the host of the others is
    hidden behind the GPU."""
    error: float
    """Median of the absolute error of the time per token of these runs themselves."""
    at_bounds: list[str]
    """Terms that are the least or the largest that were tried: they are not found."""


def fit(rows: Sequence[ServedRow], folder: Path, runner: Runner, advance: Advance) -> list[Fit]:
    """Return the terms that fit each half best, of those of whose models there are runs.

    A row's time per token is taken to grow evenly with each term; the mean absolute logarithm of
    its share in the time that was served is the least.
    """
    tasks = [
        RowTask(row=row, cost_model=measured_options(row, folder) | terms._asdict())
        for row in rows
        for terms in _TRIED
        if half_of(row) is not None
    ]
    found: dict[str, dict[HostTerms, float]] = {}
    for ran in run_all(runner, tasks):
        if isinstance(ran.record, Times):
            terms = HostTerms(*(ran.task.cost_model[name] for name in HostTerms._fields))
            found.setdefault(ran.task.row.id, {})[terms] = ran.record.tpot_ms
        advance()
    lines: dict[int, list[list[float]]] = {}
    for row in rows:
        times, half = found.get(row.id, {}), half_of(row)
        if half is not None and len(times) == len(_TRIED):
            base, step, sequence = (times[terms] for terms in _TRIED)
            slopes = (step - base) / _STEP, (sequence - base) / _SEQUENCE
            lines.setdefault(half, []).append([base, *slopes, row.tpot_ms])
    return [_least(HALVES[half], each) for half, each in sorted(lines.items())]


def _least(models: tuple[str, ...], lines: list[list[float]]) -> Fit:
    """The terms under which the error is least."""
    base, per_step, per_sequence, served = np.array(lines).T

    def shares(terms: tuple[float, float]) -> Any:
        return (base + terms[0] * per_step + terms[1] * per_sequence) / served

    best = min(
        product(_STEPS.tolist(), _SEQUENCES.tolist()),
        key=lambda terms: float(np.abs(np.log(shares(terms))).mean()),
    )
    grids = zip(HostTerms._fields, best, (_STEPS, _SEQUENCES), strict=True)
    return Fit(
        models=models,
        terms=HostTerms(round(best[0], 6), round(best[1], 8)),
        runs=len(lines),
        runs_that_tell=int(((per_step > 100) & (per_sequence > 100)).sum()),
        error=float(np.median(np.abs(shares(best) - 1))),
        at_bounds=[name for name, term, grid in grids if term in (grid[0], grid[-1])],
    )
