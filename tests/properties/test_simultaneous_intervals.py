"""Rates at which an effect is claimed that is none, and one that is."""

from __future__ import annotations

import numpy as np
import pytest

from paged_plugins.lab.statistics.differences import critical_value

pytestmark = pytest.mark.heavy


NUM_SEEDS = 6


def claimed(effects: np.ndarray) -> np.ndarray:
    errors = effects.std(axis=0, ddof=1) / np.sqrt(len(effects))
    return np.abs(effects.mean(axis=0)) / errors > critical_value(effects, 0.95)


def draw(random: np.random.Generator, count: int, common: float, *, tails: bool) -> np.ndarray:
    """Differences of equal arms, [seeds, comparisons]: normal, or of log-normal measures."""

    def one() -> np.ndarray:
        shared = random.standard_normal((NUM_SEEDS, 1))
        own = random.standard_normal((NUM_SEEDS, count))
        return np.sqrt(common) * shared + np.sqrt(1 - common) * own

    return np.exp(one()) - np.exp(one()) if tails else one()


def errors_in(replications: int, count: int, common: float, *, tails: bool) -> float:
    """The share of studies without any effect that claim one."""
    random = np.random.default_rng(1)
    wrong = [claimed(draw(random, count, common, tails=tails)).any() for _ in range(replications)]
    return float(np.mean(wrong))


def test_studies_of_equal_arms_seldom_claim_anything() -> None:
    """5% of them should; more than 13 of 100 would by chance be one in 2,000 such tests."""
    assert errors_in(100, 10, 0.5, tails=False) <= 0.13


@pytest.mark.long
@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize(
    ("count", "common"), [(1, 0.0), (20, 0.0), (20, 0.8), (80, 0.0), (80, 0.8)]
)
def test_the_familywise_error_is_the_stated_one(count: int, common: float, tails: bool) -> None:
    """Long tails claim less than that; 80 comparisons that are independent a little more."""
    assert errors_in(600, count, common, tails=tails) <= 0.09


def test_large_effects_are_found_among_many_comparisons() -> None:
    random = np.random.default_rng(2)
    found = []
    for _ in range(20):
        effects = draw(random, 40, 0.5, tails=False)
        effects[:, :4] += 5
        found.append(claimed(effects)[:4].mean())
    assert np.mean(found) > 0.9
