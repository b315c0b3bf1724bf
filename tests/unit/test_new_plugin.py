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
from paged_plugins.scaffold.new_plugin import LAYOUT, SUMMARIES

pytestmark = pytest.mark.heavy


ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "plugins" / "paged_plugins" / "scaffold" / "templates" / "plugin"


@pytest.mark.parametrize("slot", SUMMARIES)
def test_writes_a_package_that_is_sound_and_tidy(slot: str, tmp_path: Path) -> None:
    assert main(["new-plugin", "made-here", "--slot", slot, "--out", str(tmp_path / "new")]) == 0
    folder = tmp_path / "new" / "made-here"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert len(files) == len(LAYOUT)
    assert {"pyproject.toml", "src/made_here/plugin.py", "tests/test_made_here.py"} <= files
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["paged_core"] == {"made_here": "made_here.plugin"}
    assert slot in (folder / "engine.yaml").read_text("utf-8")
    article = "An" if slot in {"evictor", "observers", "attention", "executor"} else "A"
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


@pytest.mark.long
def test_what_it_writes_has_types_and_so_has_the_example(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    for slot in SUMMARIES:
        name = f"made-{slot.replace('_', '-')}"
        assert main(["new-plugin", name, "--slot", slot, "--out", str(tmp_path)]) == 0
    example = ROOT / "examples" / "third_party" / "paged-core-example" / "src"
    sources = [str(example), *(f"made-{slot.replace('_', '-')}/src" for slot in SUMMARIES)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", *sources],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MYPYPATH": os.pathsep.join(sources)},
    )
    assert done.returncode == 0, done.stdout


def test_there_is_no_template_that_nothing_uses() -> None:
    shared = {name for name in LAYOUT.values() if "$" not in name} | {"record.py"}
    own = {f"{kind}-{slot}.py" for kind in ("component", "test") for slot in SUMMARIES}
    there = {path.name.removesuffix(".tmpl") for path in TEMPLATES.iterdir()}
    assert there == shared | own
    assert set(SUMMARIES) < set(Registry.discover().slots)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("My_Order", "such as 'my-order'"),
        ("shortestFirst", "such as 'shortest-first'"),
        ("a--b", "such as 'a-b'"),
        ("9", "a letter first\n"),
        ("", "a letter first\n"),
        ("../up", "such as 'up'"),
        ("class", "a keyword of Python"),
        ("json", "a module of the standard library"),
        ("fcfs", "queue_order 'fcfs' exists"),
        ("policies", "plugin 'policies' (paged-core"),
        ("torch", "a package 'torch' is installed"),
        ("auto", "lets the engine choose"),
        ("plugin", "the module with the hook"),
        ("component", "uses another class 'ComponentSettings'"),
        ("queue-order", "uses another class 'QueueOrder'"),
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-plugin", "mine-own", "--slot", "victm", "--out", str(tmp_path)]) == 2
    assert "did you mean 'victim'?" in capsys.readouterr().err
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


class TestInto:
    """A component that is added to a package which exists."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        assert main(["new-plugin", "made-here", "--slot", "victim", "--out", str(tmp_path)]) == 0
        return tmp_path / "made-here"

    def add(self, folder: Path, name: str, slot: str = "evictor", status: int = 0) -> None:
        assert main(["new-plugin", name, "--slot", slot, "--into", str(folder)]) == status

    def test_every_slot_can_be_added_and_the_package_stays_tidy(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = {path: path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}
        for slot in SUMMARIES:
            self.add(folder, f"a-{slot.replace('_', '-')}", slot)
            said = capsys.readouterr().out
            assert f"added {slot} 'a_{slot}' to {folder}" in said
            assert f"wrote {folder / 'src' / 'made_here' / f'a_{slot}.py'}\n" in said
            assert f"changed {folder / 'src' / 'made_here' / 'plugin.py'}: " in said
        check_style(folder)
        plugin = folder / "src" / "made_here" / "plugin.py"
        text = plugin.read_text("utf-8")
        assert text.count("yield Component(") == 1 + len(SUMMARIES)
        assert '"made_here.a_router:ARouter"' in text
        left = {path: path.read_text("utf-8") for path in before if path != plugin}
        assert left == {path: was for path, was in before.items() if path != plugin}

    def test_what_the_user_wrote_stays(self, folder: Path) -> None:
        plugin = folder / "src" / "made_here" / "plugin.py"
        text = plugin.read_text("utf-8").replace("\n", "\r\n")
        text = text.replace("@hookimpl\r\ndef", "X = 1  # mine\r\n\r\n\r\n@hookimpl\r\ndef")
        plugin.write_bytes(f"{text}    # the end of it\r\n\r\n\r\nlast = 2".encode())
        old = plugin.read_bytes().split(b"\r\n")
        self.add(folder, "a-first")
        new = plugin.read_bytes().split(b"\r\n")
        assert new[-1] == b"last = 2"
        rest = iter(new)
        assert all(line in rest for line in old), "a line is gone, or has moved"
        added = [line for line in new if line not in old]
        assert added[0] == b"from made_here.a_first import AFirstSettings"
        assert new.index(added[0]) + 1 == new.index(
            b"from made_here.made_here import MadeHereSettings"
        )

    def test_a_file_that_exists_is_left_alone(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mine = folder / "tests" / "test_second.py"
        mine.write_text("precious", "utf-8")
        plugin = folder / "src" / "made_here" / "plugin.py"
        text = plugin.read_text("utf-8")
        self.add(folder, "second", status=1)
        assert f"{mine} exists already, and is left alone" in capsys.readouterr().err
        assert mine.read_text("utf-8") == "precious"
        assert plugin.read_text("utf-8") == text
        assert not (folder / "src" / "made_here" / "second.py").exists()

    @pytest.mark.parametrize(
        ("source", "why"),
        [
            ("def other():\n    pass\n", "has no function paged_core_components that yields"),
            ("def (", "is no Python"),
            (
                "def paged_core_components():\n    yield 1\n    return\n",
                "has a paged_core_components that cannot go on after its last line",
            ),
            ("import os\ndef paged_core_components():\n    yield 1\n", "does not import Component"),
        ],
    )
    def test_a_hook_that_cannot_be_changed_is_refused(
        self, folder: Path, source: str, why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        plugin = folder / "src" / "made_here" / "plugin.py"
        plugin.write_text(source, "utf-8")
        self.add(folder, "second", status=2)
        said = capsys.readouterr().err
        assert f"{plugin} {why}" in said
        assert "`from made_here.second import SecondSettings`" in said
        assert plugin.read_text("utf-8") == source
        assert not (folder / "tests" / "test_second.py").exists()

    def test_a_folder_without_a_plugin_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        project = tmp_path / "pyproject.toml"
        for text, why in (
            (None, "No such file"),
            ("[project]", "is missing"),
            ("[", "is missing"),
            ("[project.entry-points]\npaged_core = 3", "no entry point of the group paged_core"),
            ("[project.entry-points.paged_core]\na = 'a.b'\nc = 'c.d'", "names 2 plugins"),
            ("[project.entry-points.paged_core]\na = 'a.b'", "'a.b', which is not in"),
        ):
            if text is not None:
                project.write_text(text, "utf-8")
            self.add(tmp_path, "second", status=2)
            assert why in capsys.readouterr().err
        self.add(tmp_path, "lru", status=2)
        assert "the name of the component: evictor 'lru' exists" in capsys.readouterr().err
        text = "[project.entry-points.paged_core]\na = 'a'"
        project.write_text(text, "utf-8")
        (tmp_path / "a.py").touch()
        self.add(tmp_path, "evictor", status=2)
        assert "uses another class 'Evictor'" in capsys.readouterr().err
        assert main(["new-plugin", "x", "--into", str(tmp_path), "--out", "there"]) == 2
        assert "--into and --out exclude each other" in capsys.readouterr().err
