"""How far predicted times are off, by kind of step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from paged_plugins.lab.calibration.step_meter import MeasuredStep
from paged_plugins.lab.cost_model import CostModel, StepWork

_FEW = 4
"""Sequences."""
_SHORT = 128
"""Tokens."""


def kind_of(work: StepWork) -> str:
    """Return what a step is called in a report of errors."""
    if work.swapped_blocks or work.copied_blocks:
        return "with swapped blocks" if work.swapped_blocks else "with copied blocks"
    if not work.prefill_tokens:
        few = work.decode_sequences <= _FEW
        return f"decode, {f'up to {_FEW}' if few else f'more than {_FEW}'} sequences"
    if work.decode_sequences:
        return "prefill and decode"
    short = work.prefill_tokens <= _SHORT
    return f"prefill, {f'up to {_SHORT}' if short else f'more than {_SHORT}'} tokens"


def relative_errors(model: CostModel, steps: Sequence[MeasuredStep]) -> dict[str, dict[str, Any]]:
    """Return the number of steps of each kind, and their relative errors.

    ``bias`` is the median of predicted / measured - 1, ``median`` and ``p90`` are of its size.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        found[kind_of(step.work)].append(model.seconds(step.work) / step.seconds - 1)
    return {
        kind: {
            "steps": len(errors),
            "bias": round(median(errors), 4),
            "median": round(median(map(abs, errors)), 4),
            "p90": round(_p90([abs(error) for error in errors]), 4),
        }
        for kind, errors in sorted(found.items())
    }


def _p90(values: list[float]) -> float:
    return values[0] if len(values) == 1 else quantiles(values, n=10, method="inclusive")[-1]
