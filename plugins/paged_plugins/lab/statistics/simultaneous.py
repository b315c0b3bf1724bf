"""Confidence intervals that hold together, from few seeds: a studentised bootstrap of the maximum.

The intervals of all comparisons are ``mean ± c * error`` with one ``c``, so that with the stated
confidence none of them misses. ``c`` is the quantile of the largest of all ``|t|`` when no
comparison has an effect (Westfall and Young, "Resampling-based multiple testing", 1993). It is
found by drawing seeds anew as sums of those seen, with standard normal weights, whole rows at a
time: comparisons keep the correlations that they have (a multiplier bootstrap: Chernozhukov,
Chetverikov and Kato, 2013), and every draw is divided by its own error, so that one comparison by
itself gets the paired t interval. ADR 0020 has the alternatives and what each covers.
"""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DRAWS = 4000
_CHUNK = 500


def minimum_seeds(confidence: float) -> int:
    """Return the seeds from which on a difference may be claimed.

    With fewer, even differences that agree in sign in every seed come about by chance more often
    than ``1 - confidence``: the two-sided sign test, which assumes no distribution.
    """
    return ceil(1 - log2(1 - confidence))


def critical_value(effects: NDArray[np.float64], confidence: float) -> float:
    """Return the factor ``c`` of the errors that makes the intervals of all comparisons hold.

    It depends neither on the order of seeds and comparisons, nor on the unit or the sign of any,
    apart from rounding.

    Args:
        effects: [seeds, comparisons], at least 2 and 1; none is the same in all seeds.
    """
    residuals = effects - effects.mean(axis=0)
    residuals = residuals / residuals.std(axis=0)
    by_size = np.argsort((residuals**2).sum(axis=1), kind="stable")
    residuals = residuals[by_size]
    num_seeds = len(residuals)
    random = np.random.default_rng(0)
    largest = []
    for _ in range(0, _DRAWS, _CHUNK):
        weights = random.standard_normal((_CHUNK, num_seeds, num_seeds))
        drawn = weights @ residuals
        errors = drawn.std(axis=1, ddof=1) / np.sqrt(num_seeds)
        largest.append((np.abs(drawn.mean(axis=1)) / errors).max(axis=1))
    return float(np.quantile(np.concatenate(largest), confidence))
