"""Parts of the difference of two arms."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from paged_core.cli import OK, main
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.runs.queueing import Spent
from paged_plugins.lab.runs.run_record import ReplicaTotals, RequestRecord, RunRecord
from unit.lab_runs import served


def request(replica: int, arrival: float, admitted: float, finished: float) -> RequestRecord:
    return served(f"{replica}-{arrival}", arrival, admitted, finished, replica=replica)


def test_waiting_is_imbalance_while_another_replica_has_nothing_to_wait() -> None:
    """One waits from 0 to 4 at the first replica, another from 1 to 2 at the second."""
    some = [request(0, 0, 4, 5), request(1, 1, 2, 3), request(1, 4, 4, 6)]
    record = RunRecord(requests=some, replicas=[ReplicaTotals(), ReplicaTotals()])
    found = Spent.of(record)
    assert found is not None
    expected = Spent(
        waiting=2000 / 3,
        imbalance=3000 / 3,
        prefill=4000 / 3,
        decode=0,
        uncached=6,
        cached=4,
        recomputed=0,
    )
    for each in fields(Spent):
        assert getattr(found, each.name) == pytest.approx(getattr(expected, each.name))
    times = found.waiting + found.imbalance + found.prefill + found.decode
    assert times == pytest.approx(measures(record, ServiceLevel())["e2e_ms_mean"])
    unknown = replace(some[0], admitted=None)
    assert Spent.of(RunRecord(requests=[*some, unknown])) is None


@pytest.mark.heavy
def test_a_gain_that_is_imbalance_is_called_that(capsys: pytest.CaptureFixture[str]) -> None:
    """A router that keeps sessions together loses by that, whose prefixes are not cached."""
    workload = Path(__file__).parents[2] / "examples" / "cluster" / "hot_sessions.yaml"
    cluster = ["--replicas", "4", "--scheduler.max-num-seqs", "8", "--load", "0.9"]
    vary = ["--vary", "router=session,least_loaded", "--block-allocator", "uncached"]
    given = ["compare", str(workload), *vary, *cluster, "--seeds", "3", "--workers", "1", "--json"]
    assert main(given, {}) == OK
    document = json.loads(capsys.readouterr().out)
    (split,) = document["split"]
    assert split["all_imbalance"]
    assert sum(split["parts_ms"].values()) == pytest.approx(split["change_ms"])
    assert (split["parts_ms"]["hits"], split["change_ms"] < 0) == (0, True)


@pytest.mark.heavy
def test_arms_that_refuse_other_numbers_are_told_so_beside_each_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts are of those that were served, which the mean over all is not."""
    workload = tmp_path / "ten.yaml"
    workload.write_text(
        "{requests: 60, arrivals: {poisson: {rate: 40}}, lengths: {prompt: 200, output: 40}}"
    )
    vary = "admission=always,b:{name: bounded, max_waiting_requests: 2}"
    given = ["compare", str(workload), "--vary", vary, "--scheduler.max-num-seqs", "4"]
    given += ["--measure", "e2e_ms_mean", "--measure", "throughput_tokens_per_s", "--workers", "1"]
    assert main([*given, "--json"], {}) == OK
    document = json.loads(capsys.readouterr().out)
    (split,) = document["split"]
    unserved = {each["measure"]: each["unserved"] for each in document["differences"]}
    assert unserved["throughput_tokens_per_s"] is None
    assert unserved["e2e_ms_mean"] == split["unserved"]
    base, own = split["unserved"]
    assert (base, own > 1) == (0, True)
    assert main(given, {}) == OK
    out = capsys.readouterr().out
    assert f"0 to {own:.1f} not served in full" in out
    assert " ms of those served " in out
    assert (
        f"without the 0 requests a run that admission=always did not serve, and the {own:.1f}"
        in out
    )
    assert f"refused or ignored: requests a run, admission=always 0, admission=b {own:.1f}" in out
