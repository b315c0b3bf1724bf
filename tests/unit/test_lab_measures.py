"""Measures by which a run is judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from paged_plugins.lab.measures import (
    BALANCE,
    GOODPUT,
    MEASURES,
    MEMORY_SHARES,
    ServiceLevel,
    measures,
    meets,
)
from paged_plugins.lab.runs.run_record import ReplicaTotals, RequestRecord, RunRecord, RunTotals
from paged_plugins.lab.runs.time_histogram import bucket, percentile

pytestmark = pytest.mark.heavy


A = RequestRecord(
    id="a",
    arrival=0.0,
    admitted=0.5,
    first_token=1.0,
    finished=3.0,
    num_prompt=100,
    num_cached=25,
    num_output=5,
    num_preemptions=0,
    finish_reason="length",
)
B = replace(A, id="b", arrival=1.0, admitted=1.0, first_token=1.25, finished=2.25)
TOTALS = RunTotals(
    num_steps=7,
    extrapolated_steps=1,
    busy_seconds=3.0,
    elapsed=4.0,
    recomputed_tokens=11,
    num_preemptions=2,
    num_evictions=3,
    peak_memory=1 << 20,
    held_share=0.5,
    reserved_share=0.25,
    internal_share=0.125,
)


ANY = ServiceLevel()


def of(*requests: RequestRecord, slo: ServiceLevel = ANY) -> dict[str, float]:
    return measures(RunRecord(requests=list(requests), totals=TOTALS), slo)


def test_a_run_of_two_requests_has_the_measures_that_are_worked_out_by_hand() -> None:
    found = of(A, B)
    assert found["throughput_tokens_per_s"] == 10 / 4
    assert found["requests_per_s"] == 0.5
    assert found["hit_rate"] == 0.25
    assert found["ttft_ms_mean"] == (1000 + 250) / 2
    assert found["ttft_ms_p50"] == 625
    assert found["ttft_ms_p90"] == 250 + 0.9 * 750
    assert found["tpot_ms_p50"] == (500 + 250) / 2
    assert found["e2e_ms_mean"] == (3000 + 1250) / 2
    assert found["queueing_ms_p99"] == pytest.approx(0.99 * 500)
    assert found["idle_share"] == 0.25
    assert found["extrapolated_share"] == 1 / 7
    assert (found["steps"], found["makespan_s"], found["failed"]) == (7, 4, 0)
    assert (found["preemptions"], found["recomputed_tokens"], found["evictions"]) == (2, 11, 3)
    assert (found["held_share"], found["reserved_share"]) == (0.5, 0.25)
    assert (found["internal_share"], found["external_share"]) == (0.125, 0)


def test_all_measures_are_described_and_come_in_that_order() -> None:
    record = RunRecord(
        requests=[replace(A, deadline=9.0), B], totals=TOTALS, token_gaps={bucket(0.02): 3}
    )
    assert list(measures(record, ServiceLevel(ttft_ms=9))) == [
        name for name in MEASURES if name not in BALANCE
    ]
    without_limits = [name for name in MEASURES if name not in {GOODPUT, *BALANCE}]
    assert list(measures(record, ServiceLevel())) == without_limits
    cluster = replace(record, replicas=[ReplicaTotals(num_generated=3), ReplicaTotals()])
    found = measures(cluster, ServiceLevel())
    assert list(found) == [name for name in MEASURES if name not in {GOODPUT, *MEMORY_SHARES}]
    assert (found["replica_jain"], found["replica_max_over_mean"]) == (0.5, 2)


@pytest.mark.parametrize("num", [1, 2, 7, 40])
def test_percentiles_of_a_histogram_are_those_of_numpy_within_half_a_percent(num: int) -> None:
    times = np.random.default_rng(num).exponential(1.0, num)
    counts = Counter(map(bucket, times.tolist()))
    for part in (0, 50, 90, 99, 100):
        assert percentile(counts, part / 100) == pytest.approx(np.percentile(times, part), rel=5e-3)
    assert percentile({}, 0.5) is None


@pytest.mark.parametrize("reason", ["error", "ignored", "abort"])
def test_a_failed_request_waits_until_the_end_of_the_run(reason: str) -> None:
    """An arm gains nothing by failing what is slow."""
    failed = replace(B, id="c", admitted=None, first_token=None, finished=1.0, finish_reason=reason)
    found, without = of(A, failed), of(A)
    assert found["failed"] == 1
    assert found["e2e_ms_mean"] == (3000 + 2000) / 2
    assert found["ttft_ms_mean"] == (1000 + 2000) / 2
    assert found["queueing_ms_mean"] == (500 + 2000) / 2
    assert found["tpot_ms_mean"] == without["tpot_ms_mean"]
    assert found["throughput_tokens_per_s"] == without["throughput_tokens_per_s"]
    assert found["hit_rate"] == without["hit_rate"], "it never looked a prefix up"


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (ServiceLevel(ttft_ms=1000, tpot_ms=500, e2e_ms=3000), 2),
        (ServiceLevel(ttft_ms=999), 1),
        (ServiceLevel(tpot_ms=250), 1),
        (ServiceLevel(tpot_ms=249), 0),
        (ServiceLevel(ttft_ms=300, e2e_ms=300), 0),
    ],
)
def test_goodput_counts_requests_within_every_limit(slo: ServiceLevel, good: int) -> None:
    assert of(A, B, slo=slo)["goodput_per_s"] == good / 4
    assert not meets(replace(A, finish_reason="error"), slo)


def test_one_token_has_no_time_per_token_and_meets_any_limit_of_it() -> None:
    one = replace(A, num_output=1, finished=1.0)
    assert "tpot_ms_p50" not in of(one)
    assert meets(one, ServiceLevel(tpot_ms=0.001))


def test_a_deadline_is_missed_by_a_later_end_and_by_a_failure() -> None:
    met, late = replace(A, deadline=3.0), replace(A, deadline=2.9)
    failed = replace(met, finish_reason="error")
    assert of(met, late, failed, B)["missed_deadlines"] == 2 / 3
    assert "missed_deadlines" not in of(A, B)


def test_parallel_sequences_have_the_time_per_token_of_each() -> None:
    four = replace(A, num_output=20, num_sequences=4)
    assert of(four)["tpot_ms_p50"] == of(A)["tpot_ms_p50"]
    assert meets(four, ServiceLevel(tpot_ms=500))
    assert not meets(four, ServiceLevel(tpot_ms=499))
    assert "tpot_ms_p50" not in of(replace(four, num_output=4))


def test_fairness_is_of_tenants_where_they_are_named() -> None:
    """A got (100 + 2 * 5) / 3 of service a second; B (100 + 2 * 5) / 1.25."""
    rates = np.array([110 / 3, 110 / 1.25])
    expected = rates.sum() ** 2 / (2 * (rates**2).sum())
    assert of(A, B)["jain"] == pytest.approx(expected)
    assert of(A, B)["max_slowdown"] == pytest.approx((220 / 4.25) / (110 / 3))
    assert of(replace(A, tenant="x"), replace(B, tenant="x"))["jain"] == 1
    assert of(replace(A, tenant="x"), replace(B, tenant="y"))["jain"] == pytest.approx(expected)


def test_a_run_without_requests_has_no_latencies() -> None:
    found = measures(RunRecord(), ServiceLevel())
    assert found["failed"] == 0
    assert not {name for name in found if "_ms_" in name or "per_s" in name}
