"""The scripts for a GPU machine: they run from a checkout, with nothing installed."""

from __future__ import annotations

import json
import os
import re
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


def test_without_a_gpu_no_stage_is_run(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    argv = ("--only", "build", "--output", str(tmp_path), "--folder", str(tmp_path / "made"))
    environ = {"PYTHONPATH": third_party(packages), "CUDA_VISIBLE_DEVICES": ""}
    done = executed("gpu_check", *argv, **environ)
    assert done.returncode == 1
    reason = recorded(tmp_path / "gpu-check.json")["build"]["reason"]
    assert reason == "no NVIDIA GPU is found; --cpu tries the script itself on a CPU"
    assert reason in done.stdout


def test_a_stage_that_there_is_not_is_not_passed_over(tmp_path: Path) -> None:
    argv = ("--only", "atention", "--output", str(tmp_path), "--folder", str(tmp_path / "made"))
    done = executed("gpu_bench", *argv)
    assert done.returncode == 1
    record = recorded(tmp_path / "gpu-bench.json")
    assert (
        "there is no such stage here; there were throughput triton, "
        in record["atention"]["reason"]
    )


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


def stages_of(record: Any, *, is_cpu: bool = False) -> dict[str, Any]:
    session = script("gpu_session", TOOLS).Session(record, record.folder, is_cpu, [], [])
    found = list(script("gpu_check", TOOLS).all_stages(session))
    assert len({stage.name for stage in found}) == len(found)
    return {stage.name: stage for stage in found}


def test_what_matters_most_comes_first_in_a_lease(
    record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)  # NVIDIA's tools are there
    check, found = script("gpu_check", TOOLS), stages_of(record)
    assert list(found)[:4] == ["doctor", "build", "tests kernels", "tests executor"]
    assert list(found)[4:6] == ["throughput triton", "throughput cuda"]
    assert check.SECONDS < 11 * 60
    first = list(found.values())[: list(found).index("ranks on one GPU")]
    assert sum(stage.limit for stage in first) <= check.SECONDS, "these are run in any case"
    assert sum(name.startswith("ncu ") or name == "racecheck" for name in found) == 5
    assert set(stages_of(record, is_cpu=True)).isdisjoint(["racecheck", "attention wgmma"])


def test_every_test_of_a_gpu_is_in_one_stage(record: Any) -> None:
    commands = [
        " ".join(command)
        for name, stage in stages_of(record).items()
        if name.startswith("tests ")
        for command in (stage.arguments, *stage.beside)
        if "-k 2_31" not in " ".join(command)
    ]
    for path in (TOOLS.parent / "tests" / "gpu").glob("test_*.py"):
        named = re.findall(rf"{re.escape(str(path))}(?:::(\w+))?", "\n".join(commands))
        defined = re.findall(r"^(?:class|def) ([Tt]est\w+)", path.read_text(), re.M)
        assert named in ([""], defined), path
    assert all(Path(path).exists() for path in re.findall(r"/\S+\.py", "\n".join(commands)))


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


def test_a_stage_may_take_what_others_left_and_twice_its_limit(record: Any) -> None:
    for name in ("quick", "slow"):
        record.run(stages.Stage(name, ["-S", "-c", "pass"], 20))
    assert [recorded(record.path)[name]["limit_s"] for name in ("quick", "slow")] == [
        20,
        pytest.approx(40, abs=5),
    ]
    record.spare = 1000.0
    record.run(stages.Stage("last", ["-S", "-c", "pass"], 10))
    assert recorded(record.path)["last"]["limit_s"] == 20


def test_the_output_of_all_stages_is_in_one_file_and_a_copy_of_the_record_stays(
    record: Any,
) -> None:
    record.path = record.folder / "out" / "record.json"
    record.path.parent.mkdir()
    code = "import sys; print('word ' * 9999, sys.argv[1])"
    for name in ("one", "two"):
        record.run(stages.Stage(name, ["-S", "-c", code, name], 30))
    said = record.log.read_text()
    assert said.count("word") == 2 * 9999
    assert said.index("===== one") < said.index("===== two") < said.rindex("two")
    assert recorded(record.folder / "record.json") == recorded(record.path)


def test_commands_of_a_pool_run_so_many_at_once(record: Any) -> None:
    code = "import os, sys, time, pathlib as p; d = p.Path(sys.argv[1]); f = d / str(os.getpid())\n"
    code += "f.touch(); time.sleep(0.2); print(len(list(d.iterdir())), 'running'); f.unlink()"
    folder = record.folder / "running"
    folder.mkdir()
    command = ["-S", "-c", code, str(folder)]
    record.run(stages.Stage("pool", command, 30, beside=[command] * 5, workers=2))
    counts = {
        int(line.split()[0]) for line in record.log.read_text().splitlines() if "running" in line
    }
    assert recorded(record.path)["pool"]["status"] == "passed"
    assert max(counts) <= 2


def test_a_page_has_what_was_measured_and_what_did_not_pass() -> None:
    page = script("gpu_page", TOOLS).page
    row = {
        "components": {"attention": "cuda"},
        "requests": 256,
        "input_tokens": 9,
        "output_tokens": 8,
    }
    row |= {
        "temperature": 0.6,
        "elapsed_s": 1.5,
        "output_tokens_per_s": 4321.0,
        "graphs": "35 sizes",
    }
    row |= {"total_tokens_per_s": 1.0, "ttft_ms": {"p50": 3}, "tpot_ms": {"p50": 4}}
    machine = {"machine": {"gpu": "H200", "torch": "2.11", "cuda": "13.0"}, "rows": []}
    stages = [
        {"name": "throughput cuda", "status": "passed", "result": row},
        {"name": "attention", "status": "passed", "result": machine},
        {"name": "decode cuda", "status": "timed out", "seconds": 25.0, "result": None},
    ]
    made = page(
        {
            "name": "gpu-check",
            "on": "cuda",
            "started": "2026-11-28T",
            "seconds": 61.2,
            "stages": stages,
        }
    )
    assert made.startswith("### H200, PyTorch 2.11, CUDA 13.0, 2026-11-28\n")
    assert "| cuda | 256 | 9, 8 | 0.6 | 1.5 | 4321.0 | 1.0 | 3 | 4 | 35 sizes |" in made
    assert "| decode cuda | timed out | 25.0 |" in made
    assert "2 of 3 stages passed" in made


def test_what_a_stage_measured_is_told_at_once_and_last(
    record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record.run(stages.Stage("one", ["-S", "-c", "print('12.5 us')"], 30, measures=True))
    record.run(stages.Stage("two", ["-S", "-c", "print('compiled')"], 30))
    assert "12.5 us" in capsys.readouterr().out
    told = "\n".join(record.summary())
    assert "12.5 us" in told
    assert "compiled" not in told
