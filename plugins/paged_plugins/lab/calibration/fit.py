"""Weights of the cost model ``linear``, fitted to measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paged_plugins.lab.calibration.step_meter import MeasuredStep
from paged_plugins.lab.cost_models.linear import PARTS

_Array = NDArray[np.float64]
_ROUNDS = 8
_SWEEPS = 2000
_LARGE = 0.1
"""Relative errors above it count less and less: others disturbed the step."""


def fit(steps: Sequence[MeasuredStep]) -> dict[str, float]:
    """Return the weights, none below 0, that predict these steps with the least relative error;
    that of a part which no step has is 0.

    Least squares of relative errors, in which steps with large ones count less (Huber, "Robust
    estimation of a location parameter", 1964), by coordinate descent.

    Args:
        steps: at least as many as there are weights.
    """
    seconds = np.array([step.seconds for step in steps])
    parts = [[1.0, *(getattr(s.work, part) for part in PARTS.values())] for s in steps]
    relative = np.array(parts) / seconds[:, None]
    scales = np.maximum(relative.max(axis=0), 1e-300)
    matrix = relative / scales
    counts, target = np.ones(len(steps)), np.ones(len(steps))
    weights = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        weights = _least_squares(matrix * counts[:, None], target * counts, weights)
        errors = np.abs(matrix @ weights - 1)
        counts = np.sqrt(np.minimum(1.0, _LARGE / np.maximum(errors, 1e-12)))
    found = weights / scales
    return dict(zip(("fixed", *PARTS), map(float, found), strict=True))


def _least_squares(matrix: _Array, target: _Array, start: _Array) -> _Array:
    """Return the vector, nowhere negative, that ``matrix`` takes closest to ``target``."""
    square, product = matrix.T @ matrix, matrix.T @ target
    found: Any = start.copy()
    for _ in range(_SWEEPS):
        before = found.copy()
        for place in range(len(found)):
            if square[place, place] > 0:
                slope = product[place] - square[place] @ found
                found[place] = max(0.0, found[place] + slope / square[place, place])
        if np.abs(found - before).max() < 1e-12:
            break
    return np.asarray(found)
