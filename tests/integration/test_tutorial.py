"""The tutorial, followed word by word: its package is built, installed and used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from architecture.snippets import ROOT, blocks, run, run_page, write

pytestmark = pytest.mark.long


TUTORIAL = ROOT / "docs" / "tutorial.md"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The tutorial's files."""
    folder = tmp_path / "turns"
    for block in blocks(TUTORIAL):
        if block.file:
            write(block, folder)
    return folder


@pytest.fixture
def installed(sources: Path, tmp_path: Path) -> Path:
    """A folder of packages that the tutorial's is installed into."""
    pytest.importorskip("hatchling", reason="what builds the package is not installed")
    target = tmp_path / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(sources)], check=True)
    return target


def test_the_tutorial_works_as_written(installed: Path, tmp_path: Path) -> None:
    run_page(TUTORIAL, tmp_path, [installed])


def test_its_scheduler_passes_the_conformance_kit(installed: Path, sources: Path) -> None:
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider test_turns.py"
    lines = run(command, sources, [installed])
    assert "passed" in lines[-1], "\n".join(lines)
    assert "failed" not in lines[-1]
