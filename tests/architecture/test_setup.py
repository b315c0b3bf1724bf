"""Setting up on a fresh machine: which Python is taken, and what is said where none serves."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_VENV = 'case "$2" in *ensurepip*) exit 4;; *) echo 3.12;; esac'
TOO_OLD = 'case "$2" in *ensurepip*) exit 3;; *) echo 3.9;; esac'
SHIM = "echo 'pyenv: python3: command not found' >&2; exit 127"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the Makefile is for Linux, macOS and WSL")


def serves(version: str, name: str) -> str:
    return f'echo "{version} /opt/{name}"'


def find_python(folder: Path, fakes: dict[str, str], **environ: str) -> tuple[int, str, str]:
    """Run ``tools/find-python`` where only these Pythons exist."""
    for name, script in fakes.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        path.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "find-python")],
        env={"PATH": str(folder), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr


def test_plain_python3_is_preferred(tmp_path: Path) -> None:
    fakes = {"python3": serves("3.11", "a"), "python3.13": serves("3.13", "b")}
    assert find_python(tmp_path, fakes)[:2] == (0, "/opt/a")


@pytest.mark.parametrize("unfit", [SHIM, TOO_OLD, WITHOUT_VENV])
def test_a_python_that_does_not_serve_is_passed_over(tmp_path: Path, unfit: str) -> None:
    fakes = {"python3": unfit, "python3.13": unfit, "python3.12": serves("3.12", "c")}
    assert find_python(tmp_path, fakes)[:2] == (0, "/opt/c")


def test_a_tested_version_is_preferred_to_a_newer_one(tmp_path: Path) -> None:
    fakes = {"python3": serves("3.15", "new"), "python3.12": serves("3.12", "c")}
    assert find_python(tmp_path, fakes)[:2] == (0, "/opt/c")


def test_a_newer_version_is_taken_with_a_note(tmp_path: Path) -> None:
    status, path, said = find_python(tmp_path, {"python3": serves("3.15", "new")})
    assert (status, path) == (0, "/opt/new")
    assert "newer than the tested versions" in said


def test_the_user_chooses(tmp_path: Path) -> None:
    fakes = {"python3": serves("3.11", "a"), "mine": serves("3.13", "b")}
    assert find_python(tmp_path, fakes, PYTHON="mine")[:2] == (0, "/opt/b")
    status, _, said = find_python(tmp_path, fakes, PYTHON="missing")
    assert status == 1
    assert "PYTHON=missing does not run" in said


def test_a_missing_venv_module_is_answered_with_the_command(tmp_path: Path) -> None:
    status, _, said = find_python(tmp_path, {"python3": WITHOUT_VENV})
    assert status == 1
    assert "sudo apt-get install python3.12-venv" in said


def test_an_old_python_is_answered_with_what_to_do(tmp_path: Path) -> None:
    status, _, said = find_python(tmp_path, {"python3": TOO_OLD})
    assert status == 1
    assert "Python 3.11 or newer is needed; python3 is 3.9" in said
    assert "apt-get install python3 python3-venv" in said


def test_no_python_at_all(tmp_path: Path) -> None:
    status, _, said = find_python(tmp_path, {})
    assert status == 1
    assert "none was found" in said
