"""Results are kept under the sources of all that a run uses, of any author."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from paged_core.plugins.component import Component, ComponentSettings, Slot
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class
from paged_plugins.lab.study.arms import layer
from paged_plugins.lab.tasks.sources import Sources, git_revision
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


def _write(home: Path, written: Mapping[str, str]) -> None:
    for path, text in written.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text, "utf-8")


def _install(site: Path, name: str, project: Path | None) -> Path:
    """Install a distribution of two packages as pip does; ``project``: editable, from there."""
    home = site if project is None else project / "src"
    written = {
        f"{name}/__init__.py": "",
        f"{name}/plugin.py": _PLUGIN.format(name=name),
        f"{name}/choice.py": _CHOICE,
        f"{name}/table.json": "{}",
        f"{name}/.tables/.weights.json": "{}",
        f"{name}_shared/__init__.py": "from . import deep",
        f"{name}_shared/deep.py": "",
    }
    _write(home, written)
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


@pytest.fixture(params=[pytest.param("installed", marks=pytest.mark.long), "editable"])
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
        home / "my_victim" / ".tables" / ".weights.json",
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


def test_a_component_draws_where_a_source_that_it_uses_speaks_of_a_seed(home: Path) -> None:
    def draws() -> bool:
        registry = Registry.discover()
        return Sources(registry).speaks_of("seed", registry.get("victim", "my_victim"))

    choice, shared = home / "my_victim" / "choice.py", home / "my_victim_shared" / "deep.py"
    assert draws()  # policies of ours, among which some do
    choice.write_text("from paged_core.interfaces.victim import Victim")
    assert not draws()
    shared.write_text("def make(context): return context.seed")
    assert draws()
    shared.write_text("")
    choice.write_text("from other_victim.choice import Choice")
    assert draws()
    other = importlib.util.find_spec("other_victim")
    assert other is not None and other.origin is not None
    Path(other.origin).with_name("choice.py").write_text("")
    assert not draws()


_MODULE = """
from importlib import import_module
from pathlib import Path

try: import alone_helper as helper  # beside it
except ImportError: raise
TABLE = (Path(__file__).parent / "alone_tables" / "a.json").read_text()
LATER = import_module("alone_later")
"""


@pytest.mark.parametrize("folder", ["site-packages", "checkout"])
def test_modules_and_their_data_are_sources(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin of one file, modules beside it in whatever way they are imported, data, links."""
    home = tmp_path / folder
    written = {
        "alone.py": _PLUGIN.format(name="alone").replace("alone.choice", "alone")
        + _CHOICE
        + _MODULE,
        "alone_helper.py": "import alone_shared, alone_package",
        "alone_later.py": "",
        "alone_shared.py": "",
        "alone_tables/a.json": "{}",
        "alone_package/__init__.py": "",
    }
    _write(home, written)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "linked.py").write_text("")
    (home / "alone_package" / "inner").symlink_to(tmp_path / "elsewhere")
    info = home / "alone-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: alone\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[paged_core]\nalone = alone\n")
    (info / "RECORD").write_text("".join(f"{each},,\n" for each in written))
    for module in [each for each in sys.modules if each.startswith("alone")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(home)
    found = [_digest("alone")]
    changed = [each for each in written if not each.startswith("alone_package")]
    for path in (*(home / each for each in changed), tmp_path / "elsewhere" / "linked.py"):
        _appended(path)
        found.append(_digest("alone"))
        assert found[-1] != found[-2], path


_NAMED = """
from importlib import import_module as found
from typing import Literal

from paged_core.plugins.component import Component, ComponentSettings, Slot
from paged_core.plugins.hooks import hookimpl
from paged_policies.victims.newest import NewestVictim


class Settings(ComponentSettings):
    name: Literal["named"] = "named"
    rule: str = "named_rule.deep:RULE"


class ScoreSettings(ComponentSettings):
    name: Literal["named_score"] = "named_score"


class Choice(NewestVictim):
    pass


@hookimpl
def paged_core_slots():
    yield Slot("named_score", "named:Choice", "named_score")


@hookimpl
def paged_core_components():
    yield Component("victim", Settings, "named:Choice")
    yield Component("named_score", ScoreSettings, "named:Choice")
"""


@pytest.mark.parametrize("folder", ["site-packages", "checkout"])
@pytest.mark.parametrize("how", ["option", "computed"])
def test_modules_that_options_name_and_those_of_computed_names_are_sources(
    folder: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / folder
    source = _NAMED
    if how == "option":
        source = source.replace("from importlib import import_module as found", "import importlib")
    else:
        source = source.replace("named_rule.deep:RULE", "rule")
    written = {
        "named.py": source,
        "named_rule/__init__.py": "",
        "named_rule/deep.py": "import named_more",
        "named_more.py": "",
    }
    _write(home, written)
    info = home / "named-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: named\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[paged_core]\nnamed = named\n")
    (info / "RECORD").write_text("".join(f"{each},,\n" for each in written))
    for module in [each for each in sys.modules if each.startswith("named")]:
        monkeypatch.delitem(sys.modules, module)
    without = _digest("newest")
    monkeypatch.syspath_prepend(home)
    found = [_digest("named")]
    for path in written:
        _appended(home / path)
        found.append(_digest("named"))
        assert found[-1] != found[-2], path
    assert _digest("newest") == without, "a package with a slot that these runs do not ask"


def test_a_slot_counts_where_something_asks_for_it(home: Path) -> None:
    class Filter(ComponentSettings):
        name: Literal["mine"] = "mine"

    def digest(victim: str, **chosen: str) -> str:
        slot = Slot("my_filter", "other_victim.choice:Filter", "mine")
        mine = Component("my_filter", Filter, "other_victim.choice:F")
        registry = Registry.discover().extended(slot, mine)
        named = {"executor": "simulated", "victim": victim, **chosen}
        settings, _ = settings_class(registry).from_layers([layer(named)])
        task = Task(arm="base", settings=settings, workload=workload_spec("chat"), seed=0)
        return TaskDigests(registry).of(task)

    def is_remade(victim: str, **chosen: str) -> bool:
        before = digest(victim, **chosen)
        spec = importlib.util.find_spec("other_victim")
        assert spec is not None and spec.origin is not None
        _appended(Path(spec.origin).with_name("choice.py"))
        return digest(victim, **chosen) != before

    assert not is_remade("my_victim")
    assert is_remade("other_victim")
    choice = home / "my_victim" / "choice.py"
    choice.write_text(choice.read_text("utf-8") + "\nSLOT = 'my_filter'\n", "utf-8")
    assert is_remade("my_victim")


def test_a_slot_of_several_and_options_that_name_files_are_read(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Filter(ComponentSettings):
        name: Literal["mine"] = "mine"
        table: str = ""

    slot = Slot("filters", "my_victim_shared.deep:Filter", (), many=True)
    registry = Registry.discover().extended(
        slot, Component("filters", Filter, "my_victim.choice:F")
    )
    table = tmp_path / "table.csv"
    table.write_text("1")
    chosen = {"executor": "simulated", "filters": [{"name": "mine", "table": str(table)}]}
    settings, _ = settings_class(registry).from_layers([layer(chosen)])
    task = Task(arm="base", settings=settings, workload=workload_spec("chat"), seed=0)
    found = [TaskDigests(registry).of(task)]
    for path in (table, home / "my_victim" / "choice.py"):
        _appended(path)
        found.append(TaskDigests(registry).of(task))
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"name": "roofline", "model": "FOLDER"}, "config.json"),
        ({"name": "measured", "tables": "FOLDER"}, "systems/data/a.parquet"),
    ],
    ids=["a model", "tables"],
)
def test_folders_that_options_name_are_read(
    options: dict[str, str], changed: str, tmp_path: Path
) -> None:
    file = tmp_path / changed
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}")
    registry = Registry.discover()
    table = {key: value.replace("FOLDER", str(tmp_path)) for key, value in options.items()}
    chosen = {"executor": "simulated", "cost_model": table}
    settings, _ = settings_class(registry).from_layers([layer(chosen)])
    task = Task(arm="base", settings=settings, workload=workload_spec("chat"), seed=0)
    before = TaskDigests(registry).of(task)
    _appended(file)
    assert TaskDigests(registry).of(task) != before


def test_a_revision_is_known_whatever_else_is_in_the_folder(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True)

    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "b.py").write_text("")
    (tmp_path / ".gitignore").write_text("*.so\n")
    assert git_revision(tmp_path / "package") is None
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    (tmp_path / "package" / "a.so").write_text("built")
    clean = git_revision(tmp_path / "package")
    assert clean and len(clean) == 40
    assert git_revision(tmp_path / "package" / "b.py") == clean
    (tmp_path / "package" / "new.py").write_text("")
    assert git_revision(tmp_path / "package") == f"{clean}+changes"


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
    (home / "my_victim" / ".ruff_cache").mkdir()
    (home / "my_victim" / ".ruff_cache" / "CACHEDIR.TAG").write_bytes(b"x")
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
