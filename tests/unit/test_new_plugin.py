"""``paged-core new-plugin``: what it writes, and what it refuses to write."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from paged_core.cli import main
from paged_core.plugins.registry import Registry
from paged_plugins.scaffold.new_plugin import APART, LAYOUT, OWN_SLOT, SUMMARIES
from paged_plugins.scaffold.new_plugin import TEMPLATES as KINDS

pytestmark = pytest.mark.heavy


ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "plugins" / "paged_plugins" / "scaffold" / "templates" / "plugin"


@pytest.mark.parametrize("slot", KINDS)
def test_writes_a_package_that_is_sound_and_tidy(slot: str, tmp_path: Path) -> None:
    assert main(["new-plugin", "made-here", "--slot", slot, "--out", str(tmp_path / "new")]) == 0
    folder = tmp_path / "new" / "made-here"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert len(files) == len(LAYOUT) - (slot not in APART)
    assert {"pyproject.toml", "src/made_here/plugin.py", "tests/test_made_here.py"} <= files
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["paged_core"] == {"made_here": "made_here.plugin"}
    assert slot in (folder / "engine.yaml").read_text("utf-8")
    article = (
        "An" if slot in {"admission", "evictor", "observers", "attention", "executor"} else "A"
    )
    assert project["description"].startswith(f"{article} ")
    for path in folder.rglob("*"):
        assert path.is_dir() or "${" not in path.read_text("utf-8")
    check_style(folder)


def check_style(folder: Path) -> None:
    """Check that ruff finds nothing to say about a package."""
    ruff = pytest.importorskip("ruff", reason="ruff is not installed").find_ruff_bin()
    for task in (["check", "--select", "E,F,W,I,N,UP,B,SIM,RUF"], ["format", "--check"]):
        options = ["--isolated", "--no-cache", "--line-length", "100"]
        done = subprocess.run(
            [ruff, *task, *options], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def test_the_parser_that_it_writes_passes_its_tests(tmp_path: Path) -> None:
    """Others are run from their packages in tests of more time."""
    assert main(["new-plugin", "made-here", "--slot", "tool_parser", "--out", str(tmp_path)]) == 0
    folder = tmp_path / "made-here"
    about = folder / "src" / "made_here-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: made-here\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text("[paged_core]\nmade_here = made_here.plugin\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_what_it_writes_has_types_and_so_has_the_example(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    for slot in KINDS:
        name = f"made-{slot.replace('_', '-')}"
        assert main(["new-plugin", name, "--slot", slot, "--out", str(tmp_path)]) == 0
    example = ROOT / "examples" / "third_party" / "paged-core-example" / "src"
    sources = [str(example), *(f"made-{slot.replace('_', '-')}/src" for slot in KINDS)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", *sources],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MYPYPATH": os.pathsep.join(sources)},
    )
    assert done.returncode == 0, done.stdout


def test_every_slot_has_a_template_and_there_is_no_other() -> None:
    shared = {name for name in LAYOUT.values() if "$" not in name}
    own = {f"{kind}-{slot}.py" for kind in ("component", "test") for slot in KINDS}
    own |= {"plugin.py", f"plugin-{OWN_SLOT}.py", *(f"settings-{slot}.py" for slot in APART)}
    there = {path.name.removesuffix(".tmpl") for path in TEMPLATES.iterdir()}
    assert there == shared | own
    assert set(SUMMARIES) == set(Registry.discover().slots)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("My_Order", "such as 'my-order'"),
        ("a--b", "such as 'a-b'"),
        ("9", "a letter first\n"),
        ("../up", "such as 'up'"),
        ("class", "a keyword of Python"),
        ("json", "a module of the standard library"),
        ("fcfs", "queue_order 'fcfs' exists"),
        ("policies", "plugin 'policies' (paged-core"),
        ("torch", "a package 'torch' is installed"),
        ("auto", "lets the engine choose"),
        ("plugin", "the module with the hook"),
        ("component", "uses another class 'ComponentSettings'"),
        ("conftest", "pytest looks for its fixtures"),
    ],
)
def test_a_name_that_will_not_do_is_refused(
    name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-plugin", name, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert repr(name) in said
    assert why in said
    assert not any(tmp_path.iterdir())


def test_a_slot_without_a_template_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["new-plugin", "mine-own", "--slot", "victm", "--out", str(tmp_path)]) == 2
    assert "did you mean 'victim'?" in capsys.readouterr().err
    monkeypatch.delitem(SUMMARIES, "server")
    assert main(["new-plugin", "mine-own", "--slot", "server", "--out", str(tmp_path)]) == 2
    assert "docs/plugins.md says what a component needs" in capsys.readouterr().err
    blocked = ["--slot", "router", "--block-plugin", "replicas", "--out", str(tmp_path)]
    assert main(["new-plugin", "mine-own", *blocked]) == 2
    said = capsys.readouterr().err
    assert "no plugin declares the slot 'router'" in said
    assert "plugin 'replicas'" in said
    assert not any(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine-own").mkdir()
    (tmp_path / "mine-too").write_text("precious", "utf-8")
    for name in ("mine-own", "mine-too"):
        assert main(["new-plugin", name, "--out", str(tmp_path)]) == 1
        assert "exists already, and is left alone" in capsys.readouterr().err
    assert not any((tmp_path / "mine-own").iterdir())
    assert (tmp_path / "mine-too").read_text("utf-8") == "precious"


def test_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def fail_late(path: Path, *args: str) -> int:
        if path.name == "plugin.py":
            raise OSError("the disk is full")
        return write(path, *args)

    monkeypatch.setattr(Path, "write_text", fail_late)
    assert main(["new-plugin", "mine-own", "--out", str(tmp_path)]) == 1
    assert not any(tmp_path.iterdir())
