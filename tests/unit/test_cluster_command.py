"""``paged-core simulate --replicas``, as it is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import main
from unit.test_cluster_workers import copies_for_processes

Capture = pytest.CaptureFixture[str]
SMALL = """\
name: small
requests: 12
arrivals: {poisson: {rate: 4}}
lengths: {prompt: {uniform: [10, 60]}, output: {uniform: [4, 12]}}
"""
BLOCKS = ("--num-blocks", "64")


def run(*argv: str) -> int:
    return main([*argv], {"PATH": ""})


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, "utf-8")
    return str(path)


def simulated(capsys: Capture, *argv: str) -> dict[str, Any]:
    assert run("simulate", *argv, *BLOCKS, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_cluster_is_printed(capsys: Capture, workload: str) -> None:
    assert run("simulate", workload, "--replicas", "8", "--router", "power_of_two", *BLOCKS) == 0
    out = capsys.readouterr().out
    assert "small, seed 0: 12 requests on 8 replicas behind power_of_two" in out
    assert "TTFT p50" in out
    assert "busiest replica over mean" in out
    assert "..." in out, "of eight replicas the three of each end are shown"


def test_failures_are_counted_and_one_is_named(capsys: Capture, workload: str) -> None:
    assert run("simulate", workload, "--replicas", "2", "--num-blocks", "2") == 0
    out = capsys.readouterr().out
    assert "requests failed, the first: request '" in out


def test_a_document_has_every_replica_and_the_load_over_time(
    capsys: Capture, workload: str
) -> None:
    found = simulated(capsys, workload, "--replicas", "3")
    assert found["router"] == "round_robin"
    assert found["requests"] == 12
    assert [each["requests"] for each in found["replicas"]] == [4, 4, 4]
    assert {"time", "requests", "tokens", "most_requests", "idle_replicas"} == set(
        found["timeline"][0]
    )
    assert found["measures"]["replica_jain"] > 0.5


def test_one_replica_measures_what_one_engine_does(capsys: Capture, workload: str) -> None:
    alone = simulated(capsys, workload)["measures"]
    found = simulated(capsys, workload, "--router", "session")["measures"]
    assert found["makespan_s"] == alone["makespan_s"]
    for name in ("ttft_ms_mean", "tpot_ms_mean", "e2e_ms_mean", "throughput_tokens_per_s"):
        assert found[name] == pytest.approx(alone[name])


def test_requests_are_written_to_a_file(capsys: Capture, workload: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    simulated(capsys, workload, "--replicas", "2", "--requests", str(path))
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(rows) == 12
    assert {row["replica"] for row in rows} == {0, 1}


def test_workers_change_nothing(capsys: Capture, workload: str) -> None:
    with copies_for_processes():
        alone, shared = (
            simulated(capsys, workload, "--replicas", "2", "--workers", number) for number in "12"
        )
    del alone["cpu_seconds"], shared["cpu_seconds"]
    assert shared == alone


def test_workers_need_replicas(capsys: Capture, workload: str) -> None:
    assert run("simulate", workload, "--workers", "2") == 2
    assert "give --replicas too" in capsys.readouterr().err


def test_a_cluster_is_never_real(capsys: Capture, workload: str) -> None:
    assert run("simulate", workload, "--replicas", "2", "--real", "--executor", "memory") == 2
    assert "--real: a cluster is simulated" in capsys.readouterr().err
