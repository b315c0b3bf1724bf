"""The differences between arms, paired over seeds, with confidence intervals that hold together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.paired_effect import PairedEffect
from paged_plugins.lab.statistics.simultaneous import critical_value, minimum_seeds
from paged_plugins.lab.study.arm import BASE

_LEAST_CHANGE = 0.01
"""Percent or points: what is smaller is not claimed, as no decision depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far one measure of an arm is from that of the arm that it is compared with."""

    arm: str
    workload: str
    measure: str
    base: float
    """Mean over the seeds."""
    value: float
    """Likewise."""
    change: float
    """In percent (``relative``), in points of a hundred (shares), or in the unit of the measure
    (where the base is 0 in every seed)."""
    low: float
    """Of the confidence interval of ``change``, not below -100%, as no measure is negative;
    ``-inf`` where there is one seed."""
    high: float
    """Likewise; ``inf``."""
    relative: bool
    moved: bool
    """Whether a difference is claimed: the interval excludes 0, there are enough seeds
    (:func:`~paged_plugins.lab.statistics.simultaneous.minimum_seeds`), and the change is 0.01
    percent or points at least."""
    compared_with: str = BASE
    """Label of the arm that has ``base``."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A comparison: of an arm with another, ``base``, in one measure on one workload."""

    arm: str
    base: str
    workload: str
    measure: str


def differences(
    results: Results, confidence: float = 0.95, *, measures: Collection[str] | None = None
) -> list[Difference]:
    """Return the difference of every arm, workload and measure to the arm it is compared with.

    Used are the seeds that both arms ran and in which both have the measure. A change in percent
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
    return [_difference(each, factors, enough) for each in effects]


def _effect(
    pair: Pair, runs: Mapping[tuple[str, str, int], Mapping[str, float]], seeds: Sequence[int]
) -> PairedEffect | None:
    values = [
        [
            runs.get((arm, pair.workload, seed), {}).get(pair.measure)
            for arm in (pair.base, pair.arm)
        ]
        for seed in seeds
    ]
    both = [each for each in values if None not in each]
    if not both:
        return None
    base, value = np.array(both, dtype=float).T
    return PairedEffect(
        arm=pair.arm,
        compared_with=pair.base,
        workload=pair.workload,
        measure=MEASURES[pair.measure],
        base=base,
        value=value,
    )


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


def _difference(effect: PairedEffect, factors: Mapping[int, float], enough: int) -> Difference:
    num_seeds = len(effect.effects)
    half = factors[num_seeds] * effect.error if effect.error else 0.0
    low, high = (effect.change(effect.mean + side * half) for side in (-1, 1))
    if effect.relative:
        low = max(low, -100.0)
    excludes_0 = abs(effect.mean) > half
    change = effect.change(effect.mean)
    has_scale = effect.relative or effect.measure.is_share
    is_small = has_scale and abs(change) < _LEAST_CHANGE
    return Difference(
        arm=effect.arm,
        workload=effect.workload,
        measure=effect.measure.name,
        base=float(effect.base.mean()),
        value=float(effect.value.mean()),
        change=change,
        low=low if num_seeds > 1 else -inf,
        high=high if num_seeds > 1 else inf,
        relative=effect.relative,
        moved=excludes_0 and num_seeds >= enough and not is_small,
        compared_with=effect.compared_with,
    )
