"""Each test is in the core lane or in one that changes select, and together they are all tests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from lanes import EVERYTHING, LANES, ROOT, Changes, Selection, inherited

FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*/test_*.py"))
GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
CASES = """
import pytest
from lanes import inherited

class TestBase:
    def test_one(self): pass
    def test_two(self): pass

@inherited("test_two")
class TestHeir(TestBase):
    pass

@pytest.mark.parametrize("name", ["portable", "portable_amx_emulated"])
def test_kernels(name): pass
"""


def selected(*paths: str) -> set[str]:
    """The lanes that a change of these files selects."""
    header = Selection("changed", Changes(paths, "here")).header
    found = re.search(r"selected: (.+)", header)
    return set(re.findall(r"([\w-]+) \(", found[1])) if found else set()


def run_pytest(*options: str) -> str:
    """Run it without its cache, and return what it prints."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def collected(*options: str) -> list[str]:
    """The tests that a run with these options keeps."""
    return [line for line in run_pytest("--collect-only", *options).splitlines() if "::" in line]


@pytest.mark.parametrize("name", LANES)
def test_every_pattern_is_of_something(name: str) -> None:
    tracked = [path.relative_to(ROOT).as_posix() for path in _files()]
    for pattern in LANES[name].tests:
        file, *inner = pattern.split("::")
        found = [path for path in FILES if fnmatchcase(path.removeprefix("tests/"), file)]
        assert found, f"{name}: there is no {pattern}"
        for part in inner:
            words = re.compile(rf"^\s*(?:class|def) {part.replace('*', '.*')}\b", re.MULTILINE)
            assert all(words.search((ROOT / path).read_text("utf-8")) for path in found), pattern
    for pattern in LANES[name].paths:
        assert any(fnmatchcase(path, pattern) for path in tracked), f"{name}: {pattern}"


def _files() -> Sequence[Path]:
    return [
        path
        for folder in (
            "src",
            "policies",
            "backends",
            "plugins",
            "tests",
            "tools",
            "docs",
            "examples",
        )
        for path in (ROOT / folder).rglob("*")
    ] + [path for path in ROOT.iterdir() if path.is_file()]


@pytest.mark.parametrize(
    ("path", "lane"),
    [
        ("backends/paged_backends/kernels/cuda/source/decode.h", "cuda"),
        ("backends/paged_backends/kernels/simt/source/runtime.cpp", "cuda"),
        ("backends/paged_backends/kernels/triton/sampling.py", "triton"),
        ("backends/paged_backends/kernels/cpu/source/attention.cpp", "instruction-sets"),
        ("backends/paged_backends/kernels/cpu/source/attention.cpp", "kernels"),
        ("backends/paged_backends/executors/local.py", "models"),
        ("backends/paged_backends/executors/process.py", "processes"),
        ("backends/paged_backends/runners/onnx/sessions.py", "onnx"),
        ("backends/paged_backends/checkpoint/gguf/header.py", "checkpoints"),
        ("plugins/paged_plugins/lab/simulation.py", "lab"),
        ("plugins/paged_plugins/bench/peers.py", "bench"),
        ("src/paged_testing/scheduler.py", "kit"),
        ("docs/tutorial.md", "documents"),
        ("tests/unit/fake_cuda/libcuda.cpp", "cuda"),
    ],
)
def test_a_change_selects_its_lane(path: str, lane: str) -> None:
    assert (ROOT / path).is_file()
    assert lane in selected(path)


def test_a_change_of_a_policy_selects_few_lanes() -> None:
    assert len(selected("policies/paged_policies/evictors/lru.py")) <= 1


@pytest.mark.parametrize("path", EVERYTHING)
def test_a_change_of_what_all_tests_use_selects_all_lanes(path: str) -> None:
    assert (ROOT / path).is_file()
    assert selected(path) == set(LANES)


@pytest.mark.parametrize("paths", [(), ("src/paged_core/engine/engine.py",), ("tests/lanes.py",)])
def test_a_changed_test_file_runs_and_the_rest_imports_all(paths: tuple[str, ...]) -> None:
    for file in FILES:
        assert not Selection("changed", Changes((*paths, file), "here")).ignores(ROOT / file)
        for wanted in ("all", "rest"):
            assert not Selection(wanted, Changes(paths, "here")).ignores(ROOT / file)


def test_both_parts_are_all_tests(tmp_path: Path) -> None:
    """Of files with every kind of lane: none, whole files, named, marked and parametrized tests."""
    made = tmp_path / "test_cases.py"
    made.write_text(CASES, "utf-8")
    names = ("unit/test_clock.py", "unit/test_search.py", "architecture/test_docs.py")
    files = [str(made), *(str(ROOT / "tests" / name) for name in names)]
    every, first, rest = (
        collected(*files, "--changed-path=docs/lab.md", f"--lanes={wanted}")
        for wanted in ("all", "changed", "rest")
    )
    assert sorted(first + rest) == sorted(every)
    assert not {*first} & {*rest}
    heavy = {"::TestHeir::test_two", "::test_kernels[portable_amx_emulated]"}
    assert [name for name in every if name in heavy] == [
        name for name in rest if name.startswith("::")
    ]
    assert all("test_search.py" in name for name in {*rest} - heavy)


def test_marked_cases_of_a_class_are_not_those_of_its_base() -> None:
    class Base:
        def test_one(self) -> int:
            return 1

    @inherited("test_one")
    class Heir(Base):
        pass

    assert not hasattr(Base.test_one, "pytestmark")
    assert [mark.args for mark in Heir.test_one.pytestmark] == [("inherited",)]


def test_nothing_left_for_the_rest_is_a_success() -> None:
    options = ("--lanes=rest", "--changed-path=pyproject.toml")
    assert "5 deselected" in run_pytest("tests/unit/test_clock.py", *options)


class TestChanges:
    """What counts as changed."""

    def test_without_git_all_lanes_run(self, tmp_path: Path) -> None:
        changes = Changes.of(tmp_path)
        assert changes == Changes(None, "this is no git checkout")
        header = Selection("changed", changes).header
        assert all(name in header for name in LANES)
        assert "no git checkout" in header

    def test_a_single_commit_is_compared_with_nothing(self, repository: Path) -> None:
        assert Changes.of(repository).paths is None

    def test_the_last_commit_and_what_is_not_committed(self, repository: Path) -> None:
        _commit(repository, "one.py")
        _commit(repository, "two.py")
        (repository / "folder").mkdir()
        (repository / "folder" / "new file.py").write_text("x")
        (repository / "one.py").unlink()
        assert Changes.of(repository) == Changes(
            ("folder/new file.py", "one.py", "two.py"), "since HEAD~1"
        )

    def test_commits_since_the_main_branch(self, repository: Path) -> None:
        _git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
        _commit(repository, "one.py")
        _commit(repository, "two.py")
        assert Changes.of(repository) == Changes(("one.py", "two.py"), "since origin/main")

    def test_on_the_main_branch_the_last_commit(self, repository: Path) -> None:
        _commit(repository, "one.py")
        _commit(repository, "two.py")
        _git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
        assert Changes.of(repository) == Changes(("two.py",), "since HEAD~1")
        (repository / "three.py").write_text("x")
        assert Changes.of(repository) == Changes(("three.py",), "since origin/main")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path, "zero.py")
    return tmp_path


def _commit(repository: Path, name: str) -> None:
    (repository / name).write_text("x")
    _git(repository, "add", name)
    _git(repository, "commit", "--quiet", "-m", name)


def _git(repository: Path, *command: str) -> None:
    subprocess.run([*GIT, *command], cwd=repository, check=True, capture_output=True)
