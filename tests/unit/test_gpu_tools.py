"""The scripts for a GPU machine: they run from a checkout, with nothing installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unit.peer_scripts import TOOLS, script

offline, stages = script("offline", TOOLS), script("stages", TOOLS)

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(os.name == "nt", reason="the scripts are for Linux"),
]


def executed(name: str, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a Python that has no packages but those of ``PYTHONPATH``."""
    python = getattr(sys, "_base_executable", sys.executable)
    return subprocess.run(
        [python, "-S", str(TOOLS / f"{name}.py"), *argv],
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def third_party(folder: Path) -> str:
    """Make a folder with all packages of this environment except ours."""
    for place in map(Path, filter(os.path.isdir, sys.path)):
        if place.name != "site-packages":
            continue
        for package in place.iterdir():
            target = folder / package.name
            if "paged" not in package.name and not target.exists():
                target.symlink_to(package)
    return str(folder)


def recorded(path: Path) -> dict[str, dict[str, Any]]:
    return {stage["name"]: stage for stage in json.loads(path.read_text("utf-8"))["stages"]}


@pytest.fixture
def record(tmp_path: Path) -> Any:
    facts = {"name": "try"}
    return stages.Record(tmp_path / "record.json", tmp_path, 60.0, dict(os.environ), facts)


# ---------------------------------------------------------------------- from a checkout


def test_nothing_of_ours_needs_to_be_installed(tmp_path: Path) -> None:
    packages, found = tmp_path / "packages", tmp_path / "found.json"
    packages.mkdir()
    argv = ("--cpu", "--only", "build,doctor", "--skip", "doctor", "--output", str(found))
    argv = (*argv, "--folder", str(tmp_path / "made"))
    environ = {"PYTHONPATH": third_party(packages), "OMP_NUM_THREADS": "1"}
    done = executed("gpu_check", *argv, **environ)
    assert done.returncode == 0, done.stdout
    record = recorded(found)
    assert list(record) == ["environment", "build"]
    assert {row["component"] for row in record["build"]["result"]["rows"]} >= {"torch"}
    assert "build: passed" in done.stdout
    done = executed("gpu_check", *argv, "--resume", **environ)
    assert "in an earlier run" in done.stdout
    assert recorded(found)["build"] == record["build"]


def test_what_is_missing_is_named_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    found = tmp_path / "gpu-check.json"
    done = executed("gpu_check", "--folder", str(tmp_path / "made"), OUT=str(tmp_path))
    assert done.returncode == 1
    assert "environment: failed" in done.stdout
    record = recorded(found)
    said = record["environment"]["tail"]
    assert "pydantic>=" in said
    release = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert "pip download --dest wheels --constraint constraints.txt " in said
    assert f"--python-version {release} " in said
    assert "WHEELS=wheels" in said
    assert said in done.stdout
    later = [stage for name, stage in record.items() if name != "environment"]
    assert {stage["status"] for stage in later} == {"not run"}
    assert all("lacks" in stage["reason"] for stage in later)


def test_a_stage_that_there_is_not_is_not_passed_over(tmp_path: Path) -> None:
    argv = ("--only", "atention", "--output", str(tmp_path), "--folder", str(tmp_path))
    done = executed("gpu_bench", *argv)
    assert done.returncode == 1
    record = recorded(tmp_path / "gpu-bench.json")
    assert "there is no such stage here; there were checkpoint, " in record["atention"]["reason"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpu_check", "gpu_bench"])
def test_every_stage_passes_on_a_cpu(name: str, tmp_path: Path) -> None:
    packages, found = tmp_path / "packages", tmp_path / "found.json"
    packages.mkdir()
    done = executed(
        name,
        *("--cpu", "--output", str(found), "--folder", str(tmp_path / "made")),
        PYTHONPATH=third_party(packages),
    )
    assert done.returncode == 0, done.stdout
    assert {stage["status"] for stage in recorded(found).values()} == {"passed"}


@pytest.mark.parametrize("is_cpu", [False, True])
def test_all_stages_of_the_check_fit_a_lease_of_ten_minutes(
    is_cpu: bool, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)  # NVIDIA's tools are there
    session = script("gpu_session", TOOLS).Session(record, record.folder, is_cpu, [], [])
    check = script("gpu_check", TOOLS)
    found = list(check.all_stages(session))
    assert sum(stage.limit for stage in found) <= check.SECONDS
    names = [stage.name for stage in found]
    assert len(set(names)) == len(names)
    assert names[-1] == "compare"
    of_tools = [name for name in names if name.startswith("ncu ") or name == "racecheck"]
    assert len(of_tools) == (0 if is_cpu else 5)


def test_wheels_are_installed_beside_the_checkout(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no file"):
        offline.install(tmp_path, tmp_path / "target")
    (tmp_path / "broken-1-py3-none-any.whl").write_bytes(b"no archive")
    with pytest.raises(SystemExit, match="cannot be installed"):
        offline.install(tmp_path, tmp_path / "target")


def test_versions_are_compared_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "version", lambda name: "5.10.1+cu130")
    assert offline.missing(["torch>=5.9", "torch>=5.10", "torch"]) == []
    assert offline.missing(["torch>=5.11", "torch>=6"]) == ["torch>=5.11", "torch>=6"]


# ---------------------------------------------------------------------- stages


@pytest.mark.parametrize(
    ("code", "expected", "status"),
    [
        ("raise SystemExit('broken')", "", "failed"),
        ("print('a')", "b", "failed"),
        ("import time; print('began', flush=True); time.sleep(60)", "", "timed out"),
    ],
)
def test_a_stage_that_does_not_pass_stops_no_other(
    record: Any, code: str, expected: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stages.Stage
    limit = 0.5 if status == "timed out" else 30
    monkeypatch.setattr(stages, "_LEAST", 0.0)
    assert record.run(stage("first", ["-S", "-c", code], limit, expected)) is None
    record.run(stage("second", ["-S", "-c", "pass"], 30))
    found = recorded(record.path)
    assert (found["first"]["status"], found["second"]["status"]) == (status, "passed")
    assert not json.loads(record.path.read_text())["passed"]
    if status == "timed out":
        assert found["first"]["tail"] == "began\n"


@pytest.mark.parametrize(("code", "status"), [("pass", "passed"), ("1 / 0", "failed")])
def test_commands_beside_a_stage_are_part_of_it(record: Any, code: str, status: str) -> None:
    first, other = record.folder / "first", record.folder / "other"
    wait = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\n"
    wait += "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)\n"
    beside = ["-S", "-c", wait + code, str(other), str(first)]
    arguments = ["-S", "-c", wait, str(first), str(other)]
    record.run(stages.Stage("both", arguments, 30, beside=[beside]))
    assert recorded(record.path)["both"]["status"] == status


def test_no_stage_is_started_after_the_deadline(record: Any) -> None:
    record.seconds = 0.0
    assert record.run(stages.Stage("late", ["-c", "pass"], 30)) is None
    assert recorded(record.path)["late"]["status"] == "not run"


def test_what_a_stage_measured_is_told_at_once_and_last(
    record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record.run(stages.Stage("one", ["-S", "-c", "print('12.5 us')"], 30, measures=True))
    record.run(stages.Stage("two", ["-S", "-c", "print('compiled')"], 30))
    assert "12.5 us" in capsys.readouterr().out
    told = "\n".join(record.summary())
    assert "12.5 us" in told
    assert "compiled" not in told
