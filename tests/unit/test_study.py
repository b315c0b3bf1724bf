"""Ablations: what their files may say, and what a folder of results has."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from paged_core.cli import main
from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_plugins.lab.commands.studies import beginning
from paged_plugins.lab.results.folder import Manifest
from paged_plugins.lab.results.load_results import load_results
from paged_plugins.lab.study.arms import layer, plan_arms
from paged_plugins.lab.study.study import Ablation, read_ablation
from paged_plugins.lab.tasks.pool import num_workers, open_runner
from paged_plugins.lab.tasks.task import Task
from paged_plugins.lab.tasks.task import run as execute
from unit.studies import ABLATION, WORKLOAD, tables, write
from unit.study_faults import DEADLY

pytestmark = pytest.mark.heavy


REGISTRY = Registry.discover()


def labels(product: bool = False, base: dict[str, Any] | None = None, **axes: Any) -> list[str]:
    made = plan_arms([layer(base or {})], axes, REGISTRY, product=product)
    return [one.arm.label for one in made]


def run(path: Path, output: Path, *options: str) -> int:
    return main(["lab", "run", str(path), "--output", str(output), "--workers", "1", *options], {})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the small ablation."""
    folder = tmp_path_factory.mktemp("finished")
    assert run(write(folder), folder / "results") == 0
    return folder / "results"


def test_one_axis_is_varied_at_a_time() -> None:
    axes = {"evictor": ["lru", "slru"], "num_blocks": [64, 128]}
    assert labels(base={"num_blocks": 64}, **axes) == ["base", "evictor=slru", "num_blocks=128"]


def test_the_base_says_what_it_has_of_each_axis() -> None:
    found = plan_arms([], {"evictor": ["lru", "slru"], "block_size": [32]}, REGISTRY)
    assert found[0].arm.held == {"evictor": "lru"}


def test_a_product_has_all_combinations_once() -> None:
    axes = {"evictor": ["slru", "lru"], "num_blocks": [64, 128]}
    assert labels(True, base={"num_blocks": 64}, **axes) == [
        *("base", "num_blocks=128", "evictor=slru", "evictor=slru, num_blocks=128"),
    ]
    assert labels(True, **axes) == [  # the base has no number of blocks
        *("base", "num_blocks=64", "num_blocks=128"),
        *("evictor=slru, num_blocks=64", "evictor=slru, num_blocks=128"),
    ]


def test_a_value_may_be_a_table_and_a_key_dotted() -> None:
    limited = {"name": "iteration_level", "max_num_seqs": 4}
    found = plan_arms(
        [layer({"scheduler": {"name": "token_budget", "max_num_seqs": 8}})],
        {"scheduler": [limited, "token_budget"], "scheduler.max_num_seqs": [8, 16]},
        REGISTRY,
    )
    assert [one.arm.label for one in found] == [
        *(
            "base",
            "scheduler={name: iteration_level, max_num_seqs: 4}",
            "scheduler.max_num_seqs=16",
        ),
    ]
    assert [one.settings.scheduler.max_num_seqs for one in found] == [8, 4, 16]  # type: ignore[attr-defined]
    assert found[1].arm.changes == {"scheduler": limited}
    assert found[2].arm.axis == "scheduler.max_num_seqs"


def test_arms_of_a_product_that_change_one_setting_belong_to_its_axis() -> None:
    found = plan_arms([], {"evictor": ["slru"], "block_size": [16, 32]}, REGISTRY, product=True)
    assert [one.arm.axis for one in found] == [None, "evictor", None]
    found = plan_arms(
        [], {"evictor": ["lru", "slru"], "block_size": [16, 32]}, REGISTRY, product=True
    )
    assert [one.arm.axis for one in found] == [None, "block_size", "evictor", None]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"axis": {}}, "axis: no such key; did you mean 'axes'?"),
        ({"axes": {"victim": []}}, "axes.victim: List should have at least 1 item"),
        ({"axes": {"victim": ["newst"]}}, "no victim is called 'newst'; did you mean"),
        ({"axes": {"a.b.c": [1]}}, "'a.b.c' is no setting"),
        ({"axes": {"num_blocks": [0]}}, "not 0 (arm num_blocks=0, line 6)"),
        ({"base": {"num_block": 3}}, "num_block: no such setting; did you mean"),
        ({"base": {"executor": "simulated"}}, "write `executor` beside `base`, not in it"),
        ({"seeds": 0}, "seeds: give 1 to"),
        ({"seeds": [1, 0, 0]}, "seeds: 0 is given twice; leave one out (line"),
        ({"seeds": "two"}, "seeds: give a number of seeds, or a list of them, not 'two'"),
        ({"replicas": "many"}, "replicas: Input should be a valid integer, not 'many'"),
        ({"seeds": 90_000}, "up to 450,000 runs"),
        ({"slo": {"ttft_ms": -1}}, "slo: its times are milliseconds above 0"),
        ({"slo": {"ttft": 1}}, "slo.ttft: no such key; did you mean 'ttft_ms'? (line"),
        ({"load": [0.5, "x"]}, "load.1: Input should be a valid number, not 'x'"),
        (
            {"cost_model": {"name": "roofline", "device": "h1000"}},
            "no device is called 'h1000'; did you mean 'h100'? (arm base)",
        ),
        (
            {"axes": {"cost_model": ["linear", {"name": "linear", "file": "gone.yaml"}]}},
            "(arm cost_model={name: linear, file: gone.yaml})",
        ),
        (
            {
                "base": {},
                "cost_model": "roofline",
                "axes": {"cost_model.model": ["llama-3.1-8b", "llama-3.1-70b"]},
            },
            "(arm cost_model.model=llama-3.1-70b)",
        ),
        ({"workloads": []}, "workloads: name one at least"),
        ({"workloads": ["caht"]}, "no workload is called 'caht'"),
        ({"workloads": ["chat", "chat"]}, "two workloads are called 'chat'"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(SettingsError) as error:
        read_ablation(path, REGISTRY)
    message = str(error.value)
    assert problem in message
    assert message.startswith(str(path))
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("text", ["base: [", "- 1", "", "a: 1\na: 2"])
def test_what_is_no_mapping_in_yaml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=r"study\.yaml"):
        read_ablation(path, REGISTRY)


def test_a_folder_of_results_has_tidy_tables(finished: Path) -> None:
    rows = json.loads((finished / "runs.json").read_text("utf-8"))
    assert {row["arm"] for row in rows} == {
        *("base", "scheduler=prefill_or_decode", "victim=fewest_computed"),
    }
    assert all(set(row) == {"arm", "workload", "seed", "measure", "value"} for row in rows)


def test_results_are_read_back(finished: Path) -> None:
    results = load_results(finished)
    assert results.arms[0].label == "base"
    assert (results.workloads, tuple(results.seeds)) == (["small"], (0, 1))
    assert len(results.runs) == 3 * 2
    assert results.slo.ttft_ms == 500
    settings = results.manifest["settings"]["victim=fewest_computed"]
    assert settings["victim"]["name"] == "fewest_computed"
    assert results.manifest["versions"]["paged-core"]
    record = results.record("base", "small", 1)
    assert record is not None
    assert len(record.requests) == 8
    assert results.runs[0].measures["failed"] == 0


def test_arms_serve_the_same_requests(finished: Path) -> None:
    results = load_results(finished)
    for seed in results.seeds:
        arrivals = [
            sorted((one.id, one.arrival, one.num_prompt) for one in record.requests)
            for arm in results.arms
            if (record := results.record(arm.label, "small", seed))
        ]
        assert len(arrivals) == 3
        assert arrivals.count(arrivals[0]) == 3


def test_equal_runs_have_equal_bytes(finished: Path, tmp_path: Path) -> None:
    assert run(write(tmp_path), tmp_path / "again") == 0
    assert tables(tmp_path / "again") == tables(finished)


def test_what_is_there_is_not_run_again(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tables(finished)
    assert run(write(tmp_path), finished) == 0
    assert "6 done before" in capsys.readouterr().err
    assert tables(finished) == before


def test_a_folder_of_another_ablation_is_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tables(finished)
    other = write(tmp_path, seeds=1)
    assert run(other, finished) == 2
    assert "the results of another ablation" in capsys.readouterr().err
    assert run(other, tmp_path) == 2
    assert "has other files in it" in capsys.readouterr().err
    assert run(other, tmp_path, "--fresh") == 2
    assert run(other, other) == 2
    assert tables(finished) == before


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


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no .*manifest\.json; make results with"):
        load_results(tmp_path)


def test_what_requests_were_told_that_failed_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, seeds=1, base={"max_model_len": 8}, axes={"victim": ["newest"]})
    assert run(path, tmp_path / "results") == 0
    (only,) = load_results(tmp_path / "results").runs
    assert "leaves no room to generate within max_model_len=8" in str(only.failure)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", "{}"),
        ("manifest.json", "["),
        ("runs.json", "[{}]"),
        ("runs.json", [{"arm": "other", "measure": "hit_rate", "value": 0.5}]),
        ("runs.json", [{"arm": "base", "measure": "other", "value": 0.5}]),
        *(
            ("runs.json", [{"arm": "base", "measure": "hit_rate", "value": value}])
            for value in (float("inf"), float("nan"), 1e308, -1.0)
        ),
    ],
)
def test_damaged_results_are_named(finished: Path, tmp_path: Path, name: str, content: Any) -> None:
    shutil.copytree(finished, tmp_path / "results")
    if not isinstance(content, str):
        content = json.dumps([{"workload": "small", "seed": 0, **row} for row in content])
    (tmp_path / "results" / name).write_text(content, "utf-8")
    says = rf"{name} is damaged: \w.*(; run the study again|knows nothing of)"
    with pytest.raises(SettingsError, match=says):
        load_results(tmp_path / "results")


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"{}", mtime=0)], ids=len)
def test_a_damaged_record_is_named(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, seeds=1, axes={"block_size": [16]})
    assert run(path, tmp_path / "results") == 0
    record = next((tmp_path / "results" / "runs").iterdir())
    record.write_bytes(content)
    with pytest.raises(SettingsError, match="remove it and run again"):
        load_results(tmp_path / "results").record("base", "small", 0)
    assert run(path, tmp_path / "results") == 0
    found = load_results(tmp_path / "results").record("base", "small", 0)
    assert found is not None
    assert found.requests


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ("requests", "arrival", 1e308),
        ("requests", "finished", -1e308),
        ("requests", "num_sequences", 0),
        ("steps", "seconds", float("inf")),
        ("totals", "elapsed", float("nan")),
        ("token_gaps", "1000000", 1),
    ],
)
def test_numbers_of_a_record_are_bounded(
    finished: Path, tmp_path: Path, where: str, key: str, value: float
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "results"))
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text("utf-8"))
    file = manifest.runs[0].file(folder)
    content = json.loads(gzip.decompress(file.path.read_bytes()))
    part = content["record"][where]
    (part[0] if isinstance(part, list) else part)[key] = value
    file.path.write_bytes(gzip.compress(json.dumps(content).encode(), compresslevel=1))
    with pytest.raises(SettingsError, match="it holds no run; remove it and run again"):
        file.read()


def test_two_cannot_write_to_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, results = write(tmp_path, seeds=1), tmp_path / "results"
    assert run(path, results) == 0
    with (results / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run(path, results, "--fresh") == 2
    assert "another `lab run` is writing to" in capsys.readouterr().err
    assert run(path, results) == 0


@pytest.mark.parametrize("where", ["base", "axes"])
def test_runs_may_not_write_the_same_files(tmp_path: Path, where: str) -> None:
    log = {"name": "decision_log", "path": str(tmp_path / "log")}
    path = write(tmp_path, **{where: {"observers": [log if where == "base" else [log]]}})
    assert run(path, tmp_path / "results") == 2
    assert not (tmp_path / "log").exists()


def start(path: Path, output: Path, *options: str) -> psutil.Popen:
    """Start an ablation in a process of its own, and wait for its first result."""
    command = [sys.executable, "-m", "paged_core", "lab", "run", str(path), "--output", str(output)]
    process = psutil.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not list(output.glob("runs/*.gz")):
        assert process.poll() is None
        time.sleep(0.01)
    return process


def leave_partials(folder: Path, pid: int) -> list[Path]:
    """Leave what a process that was killed leaves of the files that it was writing."""
    record = next((folder / "runs").glob("*.gz"))
    left = [folder / f"{name}.{pid}.partial" for name in ("runs.json", "manifest.json")]
    left.append(record.with_name(f"{record.name}.{pid}.partial"))
    for path in left:
        path.write_bytes(b"half of it")
    return left


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


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_nothing_is_removed_that_a_run_has_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert run(write(tmp_path, seeds=1), folder) == 0
    for name in ("mine.json.gz", "0123456789abcdef.json.gz", "mine.partial", "a.gz.1.partial"):
        (folder / "runs" / name).write_bytes(b"mine")
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    left = leave_partials(folder, os.getppid())
    (folder / "runs" / "my.link.json.gz").symlink_to(mine)
    before = content_of(folder / "runs")
    for options in ((), ("--fresh",)):
        assert run(write(tmp_path, seeds=1), folder, *options) == 0
        assert content_of(folder / "runs") == before
    assert all(path.exists() for path in left)


def test_what_another_code_has_written_is_removed_by_the_names_in_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = write(tmp_path, seeds=1), tmp_path / "results"
    assert run(path, folder) == 0
    old = {each.name for each in (folder / "runs").iterdir()}
    monkeypatch.setattr("paged_plugins.lab.tasks.sources.Sources.of", lambda *_: "other")
    assert run(path, folder) == 0
    assert len(old) == len(list((folder / "runs").iterdir())) == 3
    assert old.isdisjoint(each.name for each in (folder / "runs").iterdir())


@pytest.mark.parametrize("options", [(), ("--fresh",)])
def test_records_are_written_through_no_link(
    tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder, there = write(tmp_path, seeds=1), tmp_path / "results", tmp_path / "there"
    assert run(path, folder) == 0
    record = min((folder / "runs").glob("????????????????.json.gz"))
    for link in (record, folder / "runs"):
        before = tables(folder)
        link.rename(there)
        link.symlink_to(there)
        outside = there.read_bytes() if there.is_file() else content_of(there)
        assert run(path, folder, *options) == 2
        assert f"error: {link} is a link, and records" in capsys.readouterr().err
        assert (there.read_bytes() if there.is_file() else content_of(there)) == outside
        assert tables(folder) == before
        link.unlink()
        there.rename(link)
    lock = tmp_path / "lock"
    lock.write_bytes(b"mine")
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(lock)
    assert run(path, folder, *options) == 0
    assert lock.read_bytes() == b"mine"


def test_a_record_of_another_run_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = write(tmp_path, seeds=2), tmp_path / "results"
    assert run(path, folder) == 0
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text("utf-8"))
    files = {entry.place: entry.file(folder).path for entry in manifest.runs}
    one, other = files["base", "small", 0], files["victim=fewest_computed", "small", 1]
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    before = tables(folder)
    assert run(path, folder) == 2
    assert tables(folder) == before
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"error: {one} is the record of another run (victim=fewest_computed, ")
    assert "not that of base, small, seed 0; remove it and run again" in told
    with pytest.raises(SettingsError, match="is the record of another run"):
        load_results(folder).record("base", "small", 0)
    # of the same arm and seed, under settings or requests that were others
    one.unlink()
    renamed = json.loads(gzip.decompress(kept)) | {"key": "0123"}
    one.write_bytes(gzip.compress(json.dumps(renamed).encode()))
    assert run(path, folder) == 2
    assert "(base, small, seed 0, 0123)" in capsys.readouterr().err
    one.unlink()
    assert run(path, folder) == 0
    assert one.read_bytes() == kept


@pytest.mark.skipif(os.name == "nt", reason="uses named pipes")
@pytest.mark.parametrize("name", ["runs/*.gz", "runs.json", "manifest.json", "lock"])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path, folder = write(tmp_path, seeds=1), tmp_path / "results"
    assert run(path, folder) == 0
    file = next(folder.glob(name))
    file.unlink()
    os.mkfifo(file)
    assert run(path, folder) == 2
    assert f"{file} is no regular file; remove it" in capsys.readouterr().err
    assert file.is_fifo()


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


def test_what_a_run_raises_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Any:
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


def test_a_study_without_another_arm_says_so(tmp_path: Path) -> None:
    study = read_ablation(write(tmp_path, axes={"victim": ["newest"]}), REGISTRY)
    assert "nothing is compared, as no value of `axes` differs" in beginning(study, 2, 1)


def test_real_runs_that_share_the_machine_are_no_measure(tmp_path: Path) -> None:
    study = read_ablation(write(tmp_path, executor="local"), REGISTRY)
    assert beginning(study, 6, 1).endswith("; one at a time, as they are timed on this machine")
    assert beginning(study, 6, 2).endswith("share the machine: their times are no measure")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "axes: {evictor: [lru]}\nworkloads:\n  - chat\n  - name: b\n    lenghts: 3\n",
            "workloads.1.lenghts: no such key; did you mean 'lengths'? (line 5)",
        ),
        (
            "base:\n  block_sise: 3\naxes: {evictor: [lru]}\nworkloads: [chat]\n",
            "did you mean 'block_size'? (base, line 2)",
        ),
        (
            "axes: {evictor: [lru]}\nworkloads:\n- chatt\n",
            "there is no such file; did you mean 'chat'? (line 3)",
        ),
        (
            "name: mine\nlengths: {prompt: 1, output: 1}\n",
            "this is a workload: give it to `paged-core compare`",
        ),
    ],
)
def test_mistakes_in_a_file_have_their_line_and_a_suggestion(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "ablation.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError) as caught:
        read_ablation(path, REGISTRY)
    assert message in str(caught.value)
