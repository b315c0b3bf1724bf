"""What an arm does to one measure, seed by seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import exp, sqrt
from typing import TYPE_CHECKING

import numpy as np

from paged_plugins.lab.measures.measure import Measure

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDING = 1e-11
"""What is smaller, relative to the values that are compared, is rounding."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PairedEffect:
    """One measure of two arms, on the same workload with the same seeds.

    Where a measure is compared in percent and all of its values are positive, the effect in a seed
    is the logarithm of the ratio: equal changes of short and of long runs count alike, the interval
    is of the geometric mean, and swapping the arms only changes the sign. Otherwise it is the
    difference.
    """

    arm: str
    compared_with: str
    workload: str
    measure: Measure
    base: NDArray[np.float64]
    """[seeds]"""
    value: NDArray[np.float64]
    """[seeds]"""

    @cached_property
    def relative(self) -> bool:
        """Whether changes are given in percent: shares have points, and 0 has no percent."""
        return not self.measure.is_share and bool(self.base.any())

    @cached_property
    def effects(self) -> NDArray[np.float64]:
        """[seeds]"""
        if self._is_ratio:
            return np.log(self.value / self.base)
        return self.value - self.base

    @cached_property
    def mean(self) -> float:
        """Of the effects; differences by rounding alone are 0."""
        mean = float(self.effects.mean())
        return mean if abs(mean) > self._rounding else 0.0

    @cached_property
    def error(self) -> float:
        """Standard error of the mean; 0 if all seeds have the same effect."""
        num_seeds = len(self.effects)
        if num_seeds < 2:
            return 0.0
        deviation = float(self.effects.std(ddof=1))
        return deviation / sqrt(num_seeds) if deviation > self._rounding else 0.0

    def change(self, effect: float) -> float:
        """Return an effect in percent, in points, or in the unit of the measure."""
        if self._is_ratio:
            return 100 * (exp(min(effect, 500.0)) - 1)
        if self.relative:
            return 100 * effect / abs(float(self.base.mean()))
        return 100 * effect if self.measure.is_share else effect

    @cached_property
    def _is_ratio(self) -> bool:
        return self.relative and bool((self.base > 0).all() and (self.value > 0).all())

    @cached_property
    def _rounding(self) -> float:
        size = 1.0 if self._is_ratio else max(abs(self.base).max(), abs(self.value).max())
        return _ROUNDING * float(size)
