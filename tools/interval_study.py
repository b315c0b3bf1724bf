"""Which confidence intervals hold for few seeds and many comparisons: the figures of ADR 0020.

    python tools/interval_study.py [--replications 300]

Draws paired differences without an effect (and with one, for the power) and counts how often
intervals of 95% miss. Takes half an hour of one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from paged_plugins.lab.statistics.differences import critical_value

Array = NDArray[np.float64]
CONFIDENCE = 0.95
RESAMPLES = 999
EFFECT = 4.0
"""In standard deviations of a difference."""
PLANTED = 5
"""Comparisons that have an effect, at most."""


def correlated(random: np.random.Generator, shape: tuple[int, int], share: float) -> Array:
    """Standard normals, [seeds, comparisons], of which a share of the variance is common."""
    common = random.standard_normal((shape[0], 1))
    return np.sqrt(share) * common + np.sqrt(1 - share) * random.standard_normal(shape)


def normal(random: np.random.Generator, shape: tuple[int, int], share: float) -> Array:
    return correlated(random, shape, share)


def of_lognormals(random: np.random.Generator, shape: tuple[int, int], share: float) -> Array:
    """Differences of two equal arms whose measures have long tails: they are symmetric."""
    one, other = (np.exp(correlated(random, shape, share)) for _ in range(2))
    return (one - other) / np.sqrt(2 * (np.e - 1) * np.e)


def skewed(random: np.random.Generator, shape: tuple[int, int], share: float) -> Array:
    """Exponentials about their mean: arms that are not equal, though their means are."""
    return stats.expon.ppf(stats.norm.cdf(correlated(random, shape, share))) - 1


DRAWS = {"normal": normal, "of log-normals": of_lognormals, "skewed": skewed}


def size_of_t(effects: Array) -> Array:
    """The size of t of each comparison; of a stack of effects, each."""
    errors = effects.std(axis=-2, ddof=1) / np.sqrt(effects.shape[-2])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.abs(effects.mean(axis=-2)) / errors, nan=0.0, posinf=1e9)


def resampled(random: np.random.Generator, effects: Array) -> Array:
    """Seeds drawn anew with replacement, whole rows at a time, about the mean."""
    num_seeds = len(effects)
    return (effects - effects.mean(axis=0))[random.integers(0, num_seeds, (RESAMPLES, num_seeds))]


def ours(random: np.random.Generator, effects: Array) -> NDArray[np.bool_]:
    return size_of_t(effects) > critical_value(effects, CONFIDENCE)


def bonferroni(random: np.random.Generator, effects: Array) -> NDArray[np.bool_]:
    tail = (1 - CONFIDENCE) / 2 / effects.shape[1]
    return size_of_t(effects) > stats.t.ppf(1 - tail, len(effects) - 1)


def bootstrap_t(random: np.random.Generator, effects: Array) -> NDArray[np.bool_]:
    largest = size_of_t(resampled(random, effects)).max(axis=1)
    return size_of_t(effects) > np.quantile(largest, CONFIDENCE)


def percentile(random: np.random.Generator, effects: Array) -> NDArray[np.bool_]:
    """The largest deviation of a resampled mean, by the standard error that was seen."""
    errors = effects.std(axis=0, ddof=1) / np.sqrt(len(effects))
    deviations = np.abs(resampled(random, effects).mean(axis=1)) / errors
    return size_of_t(effects) > np.quantile(deviations.max(axis=1), CONFIDENCE)


def sign_flip(random: np.random.Generator, effects: Array) -> NDArray[np.bool_]:
    """The permutation test of all signs: exact for equal arms, but no interval."""
    signs = np.array(list(product((1.0, -1.0), repeat=len(effects))))
    if len(signs) > RESAMPLES:
        signs = np.vstack([signs[:1], random.choice((1.0, -1.0), (RESAMPLES, len(effects)))])
    largest = size_of_t(signs[:, :, None] * effects).max(axis=1)
    level = (largest[:, None] >= size_of_t(effects) - 1e-9).mean(axis=0)
    return level <= 1 - CONFIDENCE


METHODS: Mapping[str, Callable[[np.random.Generator, Array], NDArray[np.bool_]]] = {
    "ours": ours,
    "t, Bonferroni": bonferroni,
    "bootstrap-t": bootstrap_t,
    "percentile": percentile,
    "sign flips": sign_flip,
}


def rows(replications: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'seeds':>5} {'n':>4} {'differences':15} {'common':>6}  " + "  ".join(
        f"{name:>15}" for name in METHODS
    )
    cases = [(6, 1), (6, 10), (6, 100), (10, 10), (10, 100)]
    for (num_seeds, count), (name, draw), share in product(cases, DRAWS.items(), (0.0, 0.8)):
        if count == 1 and share:
            continue
        random = np.random.default_rng(0)
        drawn = partial(draw, random, (num_seeds, count), share)
        misses, hits = dict.fromkeys(METHODS, 0.0), dict.fromkeys(METHODS, 0.0)
        for _ in range(replications):
            nothing, planted = drawn(), drawn()
            planted[:, :PLANTED] += EFFECT
            for method, claims in METHODS.items():
                misses[method] += claims(random, nothing).any() / replications
                hits[method] += claims(random, planted)[:PLANTED].mean() / replications
        cells = [f"{100 * misses[each]:5.1f}% {100 * hits[each]:6.0f}%" for each in METHODS]
        texts = "  ".join(f"{cell:>15}" for cell in cells)
        yield f"{num_seeds:5} {count:4} {name:15} {share:6}  {texts}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replications", type=int, default=300)
    for line in rows(parser.parse_args().replications):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
