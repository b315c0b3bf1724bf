"""Results are kept under the sources of all that a run uses, of any author."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class
from paged_plugins.lab.study.arms import layer
from paged_plugins.lab.tasks.sources import Sources
from paged_plugins.lab.tasks.task import Task, TaskDigests
from paged_plugins.workloads.named import workload_spec

_PLUGIN = """
from typing import Literal

import {name}_shared
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.hooks import hookimpl


class Settings(ComponentSettings):
    name: Literal["{name}"] = "{name}"


@hookimpl
def paged_core_components():
    yield Component("victim", Settings, "{name}.choice:Choice")
"""
_CHOICE = """
from paged_policies.victims.newest import NewestVictim


class Choice(NewestVictim):
    pass
"""


def _install(site: Path, name: str, project: Path | None) -> Path:
    """Install a distribution of two packages as pip does; ``project``: editable, from there."""
    home = site if project is None else project / "src"
    written = {
        f"{name}/__init__.py": "",
        f"{name}/plugin.py": _PLUGIN.format(name=name),
        f"{name}/choice.py": _CHOICE,
        f"{name}/table.json": "{}",
        f"{name}_shared/__init__.py": "from . import deep",
        f"{name}_shared/deep.py": "",
    }
    for path, text in written.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text, "utf-8")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[paged_core]\n{name} = {name}.plugin\n")
    listed = [*written] if project is None else []
    (info / "RECORD").write_text("".join(f"{each},,\n" for each in listed))
    if project is not None:
        told = {"url": project.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(told))
        (project / "notes.txt").write_text("unrelated", "utf-8")
    return home


@pytest.fixture(params=["installed", "editable"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the packages of the plugins ``mine`` and ``other``."""
    for name in ("my_victim", "other_victim"):
        for module in [each for each in sys.modules if each.startswith(name)]:
            monkeypatch.delitem(sys.modules, module)
    site, project = tmp_path / "site-packages", None
    if request.param == "editable":
        project = tmp_path / "project"
        monkeypatch.syspath_prepend(project / "src")
        monkeypatch.syspath_prepend(tmp_path / "elsewhere" / "src")
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    _install(site, "other_victim", project and tmp_path / "elsewhere")
    return _install(site, "my_victim", project)


def _digest(victim: str, workload: str = "chat") -> str:
    registry = Registry.discover()
    settings, _ = settings_class(registry).from_layers(
        [layer({"executor": "simulated", "victim": victim})]
    )
    task = Task(arm="base", settings=settings, workload=workload_spec(workload), seed=0)
    return TaskDigests(registry).of(task)


def _appended(path: Path) -> None:
    path.write_text(path.read_text("utf-8") + "\n", "utf-8")


def test_a_run_is_done_again_where_a_source_that_it_uses_has_changed(home: Path) -> None:
    before = _digest("my_victim")
    assert _digest("my_victim") == before
    for path in (
        home / "my_victim" / "choice.py",
        home / "my_victim" / "plugin.py",
        home / "my_victim" / "table.json",
        home / "my_victim_shared" / "deep.py",
    ):
        _appended(path)
        after = _digest("my_victim")
        assert after != before, path
        before = after


def test_what_a_run_does_not_choose_is_no_part_of_it(home: Path) -> None:
    before = _digest("other_victim")
    _appended(home / "my_victim" / "choice.py")
    _appended(home / "my_victim_shared" / "deep.py")
    assert _digest("other_victim") == before


def test_a_new_file_and_one_that_is_gone_are_changes(home: Path) -> None:
    found = {_digest("my_victim")}
    (home / "my_victim" / "more.py").write_text("", "utf-8")
    found.add(_digest("my_victim"))
    (home / "my_victim" / "table.json").unlink()
    found.add(_digest("my_victim"))
    assert len(found) == 3


def test_what_runs_leave_beside_sources_is_none(home: Path) -> None:
    before = _digest("my_victim")
    (home / "my_victim" / "__pycache__").mkdir(exist_ok=True)
    (home / "my_victim" / "__pycache__" / "choice.cpython-311.pyc").write_bytes(b"x")
    (home / "my_victim" / ".choice.py.swp").write_bytes(b"x")
    assert _digest("my_victim") == before


def test_revisions_are_those_of_each_checkout(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def revision(file: Path) -> str | None:
        asked.append(file)
        return "abc+changes" if file.is_relative_to(home / "my_victim") else None

    monkeypatch.setattr("paged_plugins.lab.tasks.sources.git_revision", revision)
    registry = Registry.discover()
    settings, _ = settings_class(registry).from_layers(
        [layer({"executor": "simulated", "victim": "my_victim"})]
    )
    assert Sources(registry).revisions([settings]) == {"my_victim": "abc+changes"}
    assert not any(path.is_relative_to(home / "other_victim") for path in asked)
