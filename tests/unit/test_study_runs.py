"""Runs of ablations: in workers, killed, failing, and made again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from pydantic import create_model

from paged_core.cli.logs import configure_logs
from paged_core.errors import SettingsError
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_plugins.lab.results.load_results import load_results
from paged_plugins.lab.study.arms import layer, plan_arms
from paged_plugins.lab.study.study import Ablation
from paged_plugins.lab.tasks.pool import num_workers, open_runner
from paged_plugins.lab.tasks.task import Task
from paged_plugins.lab.tasks.task import run as execute
from unit.studies import ABLATION, WORKLOAD, leave_partials, run, tables, write
from unit.study_faults import DEADLY, FAULTY

pytestmark = pytest.mark.heavy


REGISTRY = Registry.discover()


def test_fresh_replaces_results(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert run(write(tmp_path, seeds=1), folder) == 0
    (folder / "runs" / "notes.txt").write_text("mine", "utf-8")
    assert run(write(tmp_path, seeds=[7]), folder, "--fresh") == 0
    assert list(load_results(folder).seeds) == [7]
    assert (folder / "runs" / "notes.txt").exists()
    assert len(list((folder / "runs").glob("*.gz"))) == 3


def test_a_run_that_fails_is_reported_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of its weights goes after the arms were checked."""
    monkeypatch.setattr("paged_plugins.lab.study.study.Study.check_cost_models", lambda *_: None)
    weights = tmp_path / "weights.yaml"
    missing = {"name": "linear", "file": str(weights)}
    path = write(tmp_path, axes={"cost_model": ["linear", missing]}, seeds=1)
    folder = tmp_path / "results"
    assert run(path, folder) == 1
    told = capsys.readouterr().err
    label = f"cost_model={{name: linear, file: {weights}}}"
    assert f"failed: {label}, small, seed 0: SettingsError: " in told
    assert "1 run failed" in told
    results = load_results(folder)
    assert {one.arm for one in results.runs} == {"base", "cost_model=linear"}
    assert [one["problem"] for one in results.manifest["runs"]].count(None) == 2
    assert results.record(results.arms[2].label, "small", 0) is None
    weights.write_text("weights: {fixed: 0.01}", "utf-8")
    assert run(path, folder) == 0
    assert len(load_results(folder).runs) == 3


def test_a_file_that_runs_read_is_a_part_of_what_was_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"id": "a", "prompt": 20, "output": 3}', "utf-8")
    path = write(tmp_path, workloads=[str(trace)], axes={"block_size": [16]}, seeds=1)
    assert run(path, tmp_path / "results") == 0
    before = load_results(tmp_path / "results").runs[0].measures
    trace.write_text('{"id": "a", "prompt": 20, "output": 5}', "utf-8")
    assert run(path, tmp_path / "results") == 0
    assert load_results(tmp_path / "results").runs[0].measures != before


def test_options_that_are_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write(tmp_path), tmp_path / "results", "--num-blocks", "3") == 2
    assert "--num-blocks has no effect here" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_what_requests_were_told_that_failed_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, seeds=1, base={"max_model_len": 8}, axes={"victim": ["newest"]})
    assert run(path, tmp_path / "results") == 0
    (only,) = load_results(tmp_path / "results").runs
    assert "leaves no room to generate within max_model_len=8" in str(only.facts.failure)


def start(path: Path, output: Path, *options: str) -> psutil.Popen:
    """Start an ablation in a process of its own, and wait for its first result."""
    command = [sys.executable, "-m", "paged_core", "lab", "run", str(path), "--output", str(output)]
    process = psutil.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not list(output.glob("runs/*.gz")):
        assert process.poll() is None
        time.sleep(0.01)
    return process


@pytest.mark.skipif(os.name == "nt", reason="uses POSIX signals")
def test_killed_and_resumed_is_as_if_nothing_had_happened(tmp_path: Path) -> None:
    path = write(tmp_path, workloads=[WORKLOAD | {"requests": 40}], seeds=4)
    folder = tmp_path / "killed"
    process = start(path, folder, "--workers", "2")
    workers = process.children()
    process.kill()
    process.wait()
    assert workers
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    with pytest.raises(SettingsError, match="are not finished; resume them with"):
        load_results(folder)
    num_kept = len(list(folder.glob("runs/*.gz")))
    assert 0 < num_kept < 12
    left = leave_partials(folder, process.pid)
    (folder / "manifest.json").unlink()  # as if it had been killed before it was written
    assert run(path, folder) == 0
    assert run(path, tmp_path / "whole") == 0
    assert tables(folder) == tables(tmp_path / "whole")
    assert not any(each.exists() for each in left)


@pytest.mark.skipif(os.name == "nt", reason="uses POSIX signals")
def test_ctrl_c_ends_everything_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, workloads=[WORKLOAD | {"requests": 300}], seeds=9)
    process = start(path, tmp_path / "results", "--workers", "2")
    workers = process.children()
    for one in [process, *workers]:  # a terminal sends it to all of them
        one.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.decode().splitlines()[-1] == "interrupted"
    assert "Traceback" not in told.decode()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


def with_a_deadly_one() -> tuple[list[Task], Registry]:
    """Return tasks, of which the third takes its process down."""
    plan = Ablation.model_validate(ABLATION)
    tasks = [
        Task(arm=str(number), settings=one.settings, workload=plan.workloads[0], seed=seed)
        for number, one in enumerate(plan.arms(REGISTRY))
        for seed in range(2)
    ]
    registry = REGISTRY.extended(DEADLY)
    deadly = plan_arms([*plan.layers(), layer({"victim": "deadly"})], {}, registry)[0].settings
    tasks[2] = replace(tasks[2], settings=deadly)
    return tasks, registry


def test_a_worker_that_dies_fails_its_run_alone() -> None:
    tasks, registry = with_a_deadly_one()
    with open_runner(registry, workers=2) as runner:
        ran = {one.task.place: one for one in runner(tasks)}
    assert len(ran) == 6
    failed = [place for place, one in ran.items() if one.problem]
    assert failed == [tasks[2].place]
    assert re.match(
        r"its process \(pid \d+\) ended with exit status 9", str(ran[failed[0]].problem)
    )


def test_a_plugin_that_is_not_chosen_need_not_be_pickled() -> None:
    """Its options are of a class that no module has by its name."""
    unnamed = create_model(
        "Unnamed", __base__=ComponentSettings, name=(Literal["unnamed"], "unnamed")
    )
    registry = REGISTRY.extended(replace(DEADLY, settings=unnamed))
    tasks = with_a_deadly_one()[0][:2]
    with open_runner(registry, workers=2) as runner:
        assert not [ran.problem for ran in runner(tasks) if ran.problem]
    plan = Ablation.model_validate(ABLATION)
    layers = [*plan.layers(), layer({"victim": "unnamed"})]
    chosen = replace(tasks[0], settings=plan_arms(layers, {}, registry)[0].settings)
    with (
        open_runner(registry, workers=2) as runner,
        pytest.raises(SettingsError, match=r"another process: .*Unnamed.* --workers 1"),
    ):
        list(runner([chosen]))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_fault_of_all_runs_is_logged_once(
    workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    plan, registry = Ablation.model_validate(ABLATION), REGISTRY.extended(FAULTY)
    layers = [*plan.layers(), layer({"evictor": "faulty"})]
    settings = plan_arms(layers, {}, registry)[0].settings
    tasks = [
        Task(arm="a", settings=settings, workload=plan.workloads[0], seed=seed) for seed in range(3)
    ]
    configure_logs("warning", {})
    with open_runner(registry, workers=workers) as runner:
        assert all("planted" in str(ran.failure) for ran in runner(tasks))
    told = capfd.readouterr().err
    assert told.count("Traceback") == told.count("policies_restarted") == 1


def test_what_a_run_raises_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise ZeroDivisionError("a typo")

    monkeypatch.setattr("paged_plugins.lab.tasks.task.run_workload", fails)
    task = with_a_deadly_one()[0][0]
    problem = str(execute(task, REGISTRY).problem)
    assert problem.startswith(f"ZeroDivisionError: a typo (at {__file__}:")
    assert problem.endswith(" in fails)")


@pytest.mark.parametrize(
    ("num_tasks", "asked", "is_real", "expected"),
    [
        (100, 3, False, 3),
        (2, 3, False, 2),
        (100, None, True, 1),
        (0, 2, False, 1),
    ],
)
def test_how_many_workers_there_are(
    num_tasks: int, asked: int | None, is_real: bool, expected: int
) -> None:
    assert num_workers(num_tasks, asked, is_real=is_real) == expected
