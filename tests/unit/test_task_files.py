"""All runs of a study read the same: files that change meanwhile fail those that read them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.registry import Registry
from paged_plugins.lab.results.folder import ResultsFolder
from paged_plugins.lab.results.results import run_study
from paged_plugins.lab.study.study import Study, read_study
from paged_plugins.lab.tasks.pool import open_runner
from paged_plugins.lab.tasks.task import run
from paged_policies.victims.newest import NewestVictim
from unit.studies import write


class SignedSettings(ComponentSettings):
    """Options."""

    name: Literal["signed"] = "signed"
    table: Path


class Signed(NewestVictim):
    """Has a file."""

    def __init__(self, options: SignedSettings, context: Any, /) -> None:
        pass


REGISTRY = Registry.discover().extended(
    Component("victim", SignedSettings, f"{__name__}:Signed", summary="s")
)


def _trace(path: Path, output: int) -> None:
    lines = [{"id": str(number), "prompt": 20, "output": output} for number in range(6)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), "utf-8")


@dataclass
class Files:
    """A study that reads a trace in all of its runs and a table in those of an arm."""

    folder: Path

    @property
    def trace(self) -> Path:
        return self.folder / "trace.jsonl"

    @property
    def table(self) -> Path:
        return self.folder / "tables" / "a.json"

    def study(self) -> Study:
        victim = {"name": "signed", "table": str(self.table.parent)}
        path = write(
            self.folder,
            axes={"victim": ["newest", victim]},
            workloads=[
                {"name": "small", "requests": 8, "lengths": {"trace": str(self.trace)}},
            ],
            slo={},
        )
        return read_study(path, REGISTRY)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path)
    _trace(made.trace, 4)
    made.table.parent.mkdir()
    made.table.write_text("{}", "utf-8")
    return made


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_trace_that_changes_fails_all_runs_from_then_on(files: Files, workers: int) -> None:
    study = files.study()
    with open_runner(REGISTRY, workers=workers) as runner:
        ran = runner(list(study.tasks()))
        assert next(ran).problem is None
        _trace(files.trace, 9)
        problems = [each.problem for each in ran]
    told = f"{files.trace} has changed since the study began"
    assert all(each and each.startswith(told) for each in problems[workers - 1 :])


def test_files_of_one_arm_fail_that_arm_alone(files: Files) -> None:
    study = files.study()
    new = files.table.with_name("b.json")
    for change in (
        lambda: files.table.write_text("{ }", "utf-8"),
        files.table.unlink,
        lambda: (files.table.write_text("{}", "utf-8"), new.write_text("{}", "utf-8")),
    ):
        change()
        with open_runner(REGISTRY, workers=1) as runner:
            problems = run_study(study, runner).problems
        assert {arm for arm, *_ in problems} == {study.arms[1].arm.label}
    assert str(new) in next(iter(problems.values()))
    new.unlink()
    os.utime(files.table)  # the same content
    with open_runner(REGISTRY, workers=1) as runner:
        assert not run_study(study, runner).problems


def test_a_file_that_is_put_back_meanwhile_may_have_been_read(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = list(files.study().tasks())[1]

    def run_workload(*_: Any, **_options: Any) -> None:
        for each in ("{ }", "{}"):
            files.table.write_text(each, "utf-8")

    monkeypatch.setattr("paged_plugins.lab.tasks.task.run_workload", run_workload)
    ran = run(task, REGISTRY)
    assert ran.record is None
    assert str(files.table) in (ran.problem or "")


def test_a_result_is_kept_under_what_it_read(files: Files) -> None:
    """The trace changes in the middle and is put back: what was not read of it is run again."""
    folder, study = files.folder / "results", files.study()
    with ResultsFolder(folder, study, REGISTRY, fresh=False) as kept:
        with open_runner(REGISTRY, workers=1) as runner:
            for number, ran in enumerate(runner(kept.missing(study))):
                assert (kept.keep(ran).record is None) == (number > 0)
                _trace(files.trace, 9)
        kept.finish()
    _trace(files.trace, 4)
    study = files.study()
    with ResultsFolder(folder, study, REGISTRY, fresh=False) as kept:
        assert len(kept.missing(study)) == 3


def test_a_source_that_changes_meanwhile_may_have_been_imported(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = files.study()
    source = files.folder / "source.py"
    source.write_text("", "utf-8")
    monkeypatch.setattr("paged_plugins.lab.tasks.packages.Package.files", {"source": source})
    with ResultsFolder(files.folder / "results", study, REGISTRY, fresh=False) as kept:
        first, second, *_ = kept.missing(study)
        assert kept.keep(run(first, REGISTRY)).record is not None
        source.write_text("1", "utf-8")
        ran = kept.keep(run(second, REGISTRY))
        assert ran.record is None
        assert str(source) in (ran.problem or "")
