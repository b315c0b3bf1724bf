"""Folders of results: what is in them, and what else is there."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_plugins.lab.results.folder import Manifest
from paged_plugins.lab.results.load_results import load_results
from paged_plugins.lab.tasks.task import Ran, Task
from paged_plugins.lab.tasks.task import run as run_task
from unit.studies import ABLATION, WORKLOAD, leave_partials, run, tables, write

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the small ablation."""
    folder = tmp_path_factory.mktemp("finished")
    assert run(write(folder), folder / "results") == 0
    return folder / "results"


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


def test_an_ablation_may_gain_seeds_values_and_workloads(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "results"))
    before = tables(folder)
    axes = {**ABLATION["axes"], "victim": ["newest", "most_blocks", "fewest_computed"]}
    more = [*ABLATION["workloads"], {**WORKLOAD, "name": "more"}]
    for changes, done in (
        ({"seeds": 3}, "9 runs: 3 arms x 1 workload x 3 seeds; 6 done before"),
        ({"seeds": 3, "axes": axes, "slo": {"ttft_ms": 9}}, "12 runs: .*; 9 done before"),
        ({"seeds": 3, "axes": axes, "workloads": more}, "24 runs: .*; 12 done before"),
        ({"seeds": 3, "axes": axes, "workloads": more}, "24 runs: .*; 24 done before"),
    ):
        assert run(write(tmp_path, **changes), folder) == 0
        assert re.search(done, capsys.readouterr().err)
    after = tables(folder)
    assert all(after[name] == each for name, each in before.items() if name.endswith(".gz"))
    for changes in ({"seeds": 2}, {"base": {}}, {"workloads": more[1:]}):
        changes = {"seeds": 3, "axes": axes, "workloads": more} | changes
        assert run(write(tmp_path, **changes), folder) == 2
    assert tables(folder) == after


def test_the_search_for_a_load_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(task: Task, registry: Registry) -> Ran:
        made.append(task.arm)
        return run_task(task, registry)

    monkeypatch.setattr("paged_plugins.lab.tasks.pool.run", counted)
    workload = {**WORKLOAD, "requests": 40, "arrivals": {"poisson": {"rate": 500}}}
    path = write(tmp_path, workloads=[workload], seeds=1, load=0.5)
    folder = tmp_path / "results"
    assert run(path, folder) == 0
    searched = [arm for arm in made if arm.endswith("requests/s")]
    assert searched
    before = tables(folder)
    made.clear()
    assert run(path, folder) == 0
    assert (made, tables(folder)) == ([], before)
    assert run(path, folder, "--fresh") == 0
    assert len(made) == len(searched) + 3


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no .*manifest\.json; make results with"):
        load_results(tmp_path)


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


@pytest.mark.parametrize("options", [(), pytest.param(("--fresh",), marks=pytest.mark.long)])
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
