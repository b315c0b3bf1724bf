"""Differences between arms, with intervals that hold together."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from paged_plugins.lab.measures import value_text
from paged_plugins.lab.results.results import Results, RunResult
from paged_plugins.lab.statistics.differences import (
    Difference,
    critical_value,
    differences,
    minimum_seeds,
)
from paged_plugins.lab.study.arms import Arm

pytestmark = pytest.mark.heavy


MEASURE_NAMES = ("hit_rate", "e2e_ms_p50", "ttft_ms_p50", "preemptions", "evictions")


def results_of(
    base: np.ndarray, value: np.ndarray, names: tuple[str, ...] = MEASURE_NAMES
) -> Results:
    """Two arms; rows are seeds, columns measures."""
    runs = [
        RunResult(arm=arm, workload="w", seed=seed, measures=dict(zip(names, row, strict=False)))
        for arm, rows in (("base", base), ("arm", value))
        for seed, row in enumerate(rows.tolist())
    ]
    return Results(
        arms=[Arm(label="base"), Arm(label="arm")],
        workloads=["w"],
        seeds=range(len(base)),
        runs=runs,
    )


def of(base: object, value: object, name: str = "e2e_ms_p50") -> Difference:
    columns = (np.array(base, dtype=float)[:, None], np.array(value, dtype=float)[:, None])
    return differences(results_of(*columns, names=(name,)))[0]


def swapped(results: Results) -> Results:
    return replace(
        results,
        arms=[Arm(label="arm", compared_with="arm"), Arm(label="base", compared_with="arm")],
    )


def drawn(seed: int, num_seeds: int = 7) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    base = random.lognormal(0.0, 0.3, (num_seeds, len(MEASURE_NAMES)))
    return base, base * random.lognormal(0.05, 0.1, base.shape)


def test_one_comparison_has_the_paired_t_interval() -> None:
    base, value = [0.50, 0.52, 0.61, 0.40, 0.55, 0.58], [0.53, 0.53, 0.65, 0.42, 0.56, 0.63]
    found = of(base, value, "hit_rate")
    effects = 100 * (np.array(value) - base)
    half = stats.t.ppf(0.975, 5) * effects.std(ddof=1) / np.sqrt(6)
    assert found.change == pytest.approx(effects.mean())
    assert found.high - found.change == pytest.approx(half, rel=0.05)
    assert found.moved
    assert not found.relative


def test_a_change_in_percent_is_the_geometric_mean_of_those_of_the_seeds() -> None:
    found = of([100, 200, 400, 800, 100, 100], [110, 220, 440, 880, 110, 110])
    assert (found.change, found.low, found.high) == (pytest.approx(10),) * 3
    assert found.moved
    assert found.relative


def test_rounding_is_no_difference() -> None:
    base = np.full((6, 1), 0.1) + np.linspace(0, 1, 6)[:, None]
    found = of(base[:, 0], base[:, 0] * 3 / 3 + 1e-17, "hit_rate")
    assert (found.change, found.moved) == (0, False)


def test_a_change_on_which_no_decision_depends_is_not_claimed() -> None:
    found = of([100.0] * 6, [100.005] * 6)
    assert (found.change, found.moved) == (pytest.approx(0.005), False)
    assert of([100.0] * 6, [100.02] * 6).moved


def test_a_difference_that_is_the_same_in_every_seed_is_claimed() -> None:
    found = of([0.5] * 6, [0.4] * 6, "hit_rate")
    assert (found.change, found.low, found.high) == (pytest.approx(-10),) * 3
    assert found.moved


@pytest.mark.parametrize("num_seeds", [1, 2, 5])
def test_few_seeds_claim_nothing(num_seeds: int) -> None:
    found = of([0.5] * num_seeds, [0.9] * num_seeds, "hit_rate")
    assert not found.moved
    assert found.change == pytest.approx(40)
    assert (found.low == -inf) == (found.high == inf) == (num_seeds == 1)


@pytest.mark.parametrize(("confidence", "enough"), [(0.9, 5), (0.95, 6), (0.99, 8)])
def test_the_seeds_of_a_claim_are_those_of_the_sign_test(confidence: float, enough: int) -> None:
    assert minimum_seeds(confidence) == enough
    assert 2 * 0.5**enough <= 1 - confidence < 2 * 0.5 ** (enough - 1)


def test_one_seed_with_a_few_events_moves_nothing() -> None:
    """Neither a ratio of sums that one seed decides, nor a count that is 0 everywhere else."""
    assert not of([0, 0, 0, 0, 0, 100], [0, 0, 0, 0, 0, 1], "preemptions").moved
    found = of([0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 6], "preemptions")
    assert (found.relative, found.change, found.moved) == (False, 1, False)


def test_a_count_that_falls_to_zero_falls_by_all_of_it() -> None:
    found = of([10, 12, 9, 11, 13, 10], [0] * 6, "preemptions")
    assert (found.change, found.moved) == (pytest.approx(-100), True)
    assert (found.low, found.high) == (-100, pytest.approx(-85, abs=5))


def test_seeds_without_the_measure_are_left_out() -> None:
    results = results_of(*drawn(2))
    runs = list(results.runs)
    runs[0] = replace(runs[0], measures={"hit_rate": 0.5})
    found = {each.measure: each for each in differences(replace(results, runs=runs))}
    whole = {each.measure: each for each in differences(results)}
    assert found["evictions"].base != whole["evictions"].base
    assert set(found) == set(whole)
    nowhere = [replace(run, measures={}) for run in runs[:7]]
    assert differences(replace(results, runs=[*nowhere, *runs[7:]])) == []


def test_more_comparisons_make_wider_intervals() -> None:
    results = results_of(*drawn(3))
    alone = differences(results, measures=["hit_rate"])[0]
    among = next(each for each in differences(results) if each.measure == "hit_rate")
    assert among.change == alone.change
    assert among.high - among.low > 1.3 * (alone.high - alone.low)


def test_copies_of_a_comparison_make_no_wider_ones() -> None:
    """Perfectly correlated measures are one comparison."""
    effects = np.random.default_rng(0).normal(size=(6, 1))
    assert critical_value(np.tile(effects, 50), 0.95) == pytest.approx(
        critical_value(effects, 0.95)
    )


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15)
def test_swapping_the_arms_turns_the_sign(seed: int) -> None:
    results = results_of(*drawn(seed))
    for there, back in zip(differences(results), differences(swapped(results)), strict=True):
        assert there.moved == back.moved
        if there.relative:
            assert (1 + there.change / 100) * (1 + back.change / 100) == pytest.approx(1)
            assert (1 + there.low / 100) * (1 + back.high / 100) == pytest.approx(1)
        else:
            assert (back.low, back.high) == pytest.approx((-there.high, -there.low))


@given(seed=st.integers(0, 10**6), order=st.permutations(range(7)))
@settings(max_examples=15)
def test_the_order_of_seeds_does_not_matter(seed: int, order: list[int]) -> None:
    base, value = drawn(seed)
    found, other = (
        differences(results_of(*rows)) for rows in ((base, value), (base[order], value[order]))
    )
    for one, two in zip(found, other, strict=True):
        assert (two.change, two.low, two.high) == pytest.approx((one.change, one.low, one.high))
        assert one.moved == two.moved


@given(seed=st.integers(0, 10**6), factor=st.floats(1e-3, 1e3))
@settings(max_examples=15)
def test_the_unit_does_not_matter_to_percent(seed: int, factor: float) -> None:
    base, value = drawn(seed)
    pairs = zip(
        differences(results_of(base, value)),
        differences(results_of(factor * base, factor * value)),
        strict=True,
    )
    for one, two in pairs:
        if one.relative:
            expected = pytest.approx((one.change, one.low, one.high), rel=1e-6, abs=1e-6)
            assert (two.change, two.low, two.high) == expected


@pytest.mark.parametrize(("base", "value"), [(5e-324, 1e21), (1e21, 5e-324), (1e21, 1e21)])
def test_extreme_values_are_written_in_one_short_line(base: float, value: float) -> None:
    runs = [
        RunResult(arm=arm, workload="w", seed=seed, measures={"e2e_ms_p50": each * (1 + seed / 9)})
        for arm, each in (("base", base), ("x", value))
        for seed in range(6)
    ]
    arms = [Arm(label="base"), Arm(label="x", changes={"x": 1}, axis="x")]
    results = Results(arms=arms, workloads=["w"], seeds=range(6), runs=runs)
    (found,) = differences(results)
    assert isfinite(found.change)
    for text in (found.change_text, value_text("e2e_ms_p50", value)):
        assert len(text) < 20
