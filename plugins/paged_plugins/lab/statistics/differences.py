"""The differences between arms, paired over seeds, with confidence intervals that hold together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, inf, isfinite, log2, sqrt
from typing import TYPE_CHECKING, Literal

import numpy as np

from paged_plugins.lab.measures import MEASURES, Measure, number_text, value_text
from paged_plugins.lab.results.results import Results

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


_ROUNDING = 1e-11
"""Rounding: anything smaller, relative to the values that are compared."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A comparison of two arms in one measure on one workload."""

    arm: str
    compared_with: str
    workload: str
    measure: str


@dataclass(frozen=True, eq=False)
class PairedEffect:
    """One measure of two arms, on the same workload with the same seeds.

    Where a measure is compared in percent and all of its values are positive, the effect in a seed
    is the logarithm of the ratio: equal changes of short and of long runs count alike, the interval
    is of the geometric mean, and swapping the arms only changes the sign. Otherwise it is the
    difference.
    """

    pair: Pair
    base: NDArray[np.float64]
    """[seeds]"""
    value: NDArray[np.float64]
    """[seeds]"""

    @property
    def measure(self) -> Measure:
        """The measure that is compared."""
        return MEASURES[self.pair.measure]

    @cached_property
    def relative(self) -> bool:
        """Return whether changes are given in percent: shares have points, and 0 has no percent."""
        return not self.measure.is_share and bool(self.base.any())

    @cached_property
    def effects(self) -> NDArray[np.float64]:
        """[seeds]"""
        if self._is_ratio:
            return np.log(self.value) - np.log(self.base)  # the quotient may overflow
        return self.value - self.base

    @cached_property
    def mean(self) -> float:
        """Mean of the effects; differences by rounding alone are 0."""
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


Verdict = Literal["better", "worse", "differs", "equal", "undecided"]

_LEAST_CHANGE = 0.01
"""Percent or points: what is smaller is not claimed, as no decision depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Pair):
    """Distance of one measure of an arm from that of the arm that it is compared with."""

    base: float
    """Mean over the seeds."""
    value: float
    """Likewise."""
    change: float
    """In percent (``relative``), in points of a hundred (shares), or in the unit of the measure
    (where the base is 0 in every seed)."""
    low: float
    """Lower end of the interval of ``change``, not below -100%, as no measure is negative;
    ``-inf`` where there is one seed."""
    high: float
    """Likewise; ``inf``."""
    relative: bool
    moved: bool
    """True if a difference is claimed: the interval excludes 0, there are enough seeds
    (:func:`~paged_plugins.lab.statistics.differences.minimum_seeds`) or nothing is drawn, and the
    change is 0.01 percent or points at least."""
    is_exact: bool = False
    """True if nothing is drawn, so that there is nothing that an interval bounds."""
    unserved: tuple[float, float] | None = None
    """Requests a run that the base and this arm did not serve in full, where the measure depends on
    them and they are not as many."""

    @property
    def is_equal(self) -> bool:
        """Return whether the arms are equal in every seed."""
        return self.low == self.high == 0

    @property
    def has_interval(self) -> bool:
        """Return whether there are two seeds at least."""
        return isfinite(self.low)

    def holds(self, change: float) -> bool:
        """Return whether a change is within the interval, or as good as an exact one."""
        slack = _LEAST_CHANGE if self.is_exact else 0.0
        return self.low - slack <= change <= self.high + slack

    @property
    def is_better(self) -> bool | None:
        """Return whether the change is for the better; ``None``: it is neither better nor worse."""
        better = MEASURES[self.measure].better
        if better is None or self.change == 0:
            return None
        return (self.change > 0) is (better == "higher")

    @property
    def verdict(self) -> Verdict:
        """Which way it moved, if it did; of a measure without a better way, that it differs."""
        if not self.moved:
            return "equal" if self.is_equal else "undecided"
        return "differs" if self.is_better is None else "better" if self.is_better else "worse"

    @property
    def told(self) -> str:
        """The verdict, and how many requests were not served where that decides it, too."""
        if self.unserved is None or not self.moved:
            return self.verdict
        base, own = (value_text("refused", each) for each in self.unserved)
        return f"{self.verdict}, {base} to {own} not served in full"

    @property
    def unit(self) -> str:
        """The unit of the change."""
        measure = MEASURES[self.measure]
        return "%" if self.relative else "points" if measure.is_share else measure.unit

    @property
    def change_text(self) -> str:
        """The change with its unit: ``+2.1 points``, ``-3%``, ``+12 ms``."""
        space = "" if self.relative or not self.unit else " "
        return f"{_signed(self.change, self._digits)}{space}{self.unit}"

    @property
    def interval_text(self) -> str:
        """The confidence interval: ``[+1.3, +2.9]``; of one seed ``[?, ?]``."""
        if self.is_exact:
            return "exact"
        low, high = (
            _signed(end, self._digits) if isfinite(end) else "?" for end in (self.low, self.high)
        )
        return f"[{low}, {high}]"

    @property
    def _digits(self) -> int:
        """Decimals of the change and its interval: where it moved, enough to tell its ends from
        0.
        """
        numbers = [
            abs(each)
            for each in (self.change, self.low, self.high)
            if isfinite(each) and (self.moved or each == self.change)
        ]
        digits = 0 if max(numbers) >= 10 and self.relative else 1
        while self.moved and round(min(numbers), digits) == 0 and digits < _MOST_DIGITS:
            digits += 1
        return digits


_MOST_DIGITS = 4


def _signed(value: float, digits: int) -> str:
    """Return a number with its sign, ``-0.0`` if rounding alone makes it 0; ``0`` if it is."""
    return number_text(value, digits, "+") if value else "0"


def differences(
    results: Results, confidence: float = 0.95, *, measures: Collection[str] | None = None
) -> list[Difference]:
    """Return the difference of every arm, workload and measure to the arm it is compared with.

    Used are the seeds that both arms ran and in which both have the measure; an arm that failed has
    no difference, nor has what is compared with it. A change in percent
    is the geometric mean of those of the seeds where all values are positive, else the difference
    of the means in percent of the base's. All intervals hold together with probability
    ``confidence``: each ``moved`` can be believed, however many comparisons there are.

    Args:
        confidence: between 0 and 1.
        measures: names of those to compare; the more, the wider the intervals. ``None``: all.
    """
    wanted = [name for name in MEASURES if measures is None or name in measures]
    pairs = [
        Pair(arm.label, arm.compared_with, workload, name)
        for workload in results.workloads
        for arm in results.arms
        if arm.compared_with != arm.label
        and results.failures.keys().isdisjoint((arm.label, arm.compared_with))
        for name in wanted
    ]
    return differences_of(pairs, results, confidence)


def differences_of(
    pairs: Iterable[Pair], results: Results, confidence: float = 0.95
) -> list[Difference]:
    """Return the differences of ``pairs``, less those that no seed has; see :func:`differences`."""
    runs = {(run.arm, run.workload, run.seed): run.measures for run in results.runs}
    effects = [effect for pair in pairs if (effect := _effect(pair, runs, results.seeds))]
    factors = _factors(effects, confidence)
    enough = minimum_seeds(confidence)
    return [_difference(each, factors, enough, results.is_exact) for each in effects]


def _effect(
    pair: Pair, runs: Mapping[tuple[str, str, int], Mapping[str, float]], seeds: Sequence[int]
) -> PairedEffect | None:
    values = [
        [
            runs.get((arm, pair.workload, seed), {}).get(pair.measure)
            for arm in (pair.compared_with, pair.arm)
        ]
        for seed in seeds
    ]
    both = [each for each in values if None not in each]
    if not both:
        return None
    base, value = np.array(both, dtype=float).T
    return PairedEffect(pair, base, value)


def _factors(effects: Sequence[PairedEffect], confidence: float) -> Mapping[int, float]:
    """Return the critical value by the number of seeds; where runs are missing, comparisons with
    equally many share a part of the risk.
    """
    varying: defaultdict[int, list[PairedEffect]] = defaultdict(list)
    for effect in effects:
        if effect.error > 0:
            varying[len(effect.effects)].append(effect)
    risk = (1 - confidence) / max(1, sum(map(len, varying.values())))
    return {
        num_seeds: critical_value(
            np.stack([effect.effects for effect in some], axis=1), 1 - risk * len(some)
        )
        for num_seeds, some in varying.items()
    }


def _difference(
    effect: PairedEffect, factors: Mapping[int, float], enough: int, is_exact: bool
) -> Difference:
    pair, num_seeds = effect.pair, len(effect.effects)
    half = factors[num_seeds] * effect.error if effect.error else 0.0
    low, high = (effect.change(effect.mean + side * half) for side in (-1, 1))
    if effect.relative:
        low = max(low, -100.0)
    excludes_0 = abs(effect.mean) > half
    change = effect.change(effect.mean)
    has_scale = effect.relative or effect.measure.is_share
    is_small = has_scale and abs(change) < _LEAST_CHANGE
    return Difference(
        *(pair.arm, pair.compared_with, pair.workload, pair.measure),
        base=float(effect.base.mean()),
        value=float(effect.value.mean()),
        change=change,
        low=low if num_seeds > 1 or is_exact else -inf,
        high=high if num_seeds > 1 or is_exact else inf,
        relative=effect.relative,
        moved=excludes_0 and (is_exact or num_seeds >= enough) and not is_small,
        is_exact=is_exact,
    )
