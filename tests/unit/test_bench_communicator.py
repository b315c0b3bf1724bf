"""``bench communicator``: what it prints, and what it refuses."""

from __future__ import annotations

import json

import pytest

from paged_core.cli import main

Capture = pytest.CaptureFixture[str]
pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("compiled_kernels")]


def run(capsys: Capture, *argv: str, status: int = 0) -> str:
    assert main(["bench", "communicator", *argv]) == status
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return err if status else out


@pytest.mark.long
def test_measures_every_communicator_that_can_be_used_here(capsys: Capture) -> None:
    found = json.loads(run(capsys, "--sizes", "64,4096", "--repeats", "5", "--json"))
    rows = {(row["communicator"], row["operation"], row["bytes"]): row for row in found["rows"]}
    operations = ("all_reduce", "all_gather", "broadcast")
    measured = {name for name, _, _ in rows}
    assert {"shm", "gloo"} <= measured
    assert {*rows} == {(m, o, b) for m in measured for o in operations for b in (64, 4096)}
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in rows.values())
    assert measured | {*found["refused"]} == {"shm", "gloo", "nccl"}
    assert (found["ranks"], found["dtype"]) == (2, "bfloat16")


def test_prints_a_table_of_those_that_are_named(capsys: Capture) -> None:
    few = ("--sizes", "64", "--repeats", "3", "--no-pin")
    out = run(capsys, "--communicators", "shm", *few)
    assert "between 2 processes" in out
    assert "all_gather" in out
    assert "gloo" not in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--sizes", "many"), "--sizes takes numbers of bytes, 16 at least, not 'many'"),
        (("--communicators", "smoke"), "smoke"),
        (
            ("--communicators", "shm", "--sizes", "64", "--dtype", "int64"),
            "communicator 'shm', rank 0: TypeError: sums are of float32",
        ),
        pytest.param(
            ("--communicators", "shm", "--sizes", "64", "--dtype", "float31"),
            "communicator 'shm', rank 0: .*float31",
            marks=pytest.mark.long,
        ),
    ],
    ids=str,
)
def test_refuses_in_a_line(capsys: Capture, argv: tuple[str, ...], said: str) -> None:
    err = run(capsys, *argv, "--repeats", "2", status=2)
    assert said.partition(": .*")[0] in err
    assert said.rpartition(".*")[2] in err
