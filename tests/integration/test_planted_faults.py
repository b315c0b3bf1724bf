"""Each planted fault of the GPU path is found by the test that is named for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest

from unit.planted_faults import PLANTED, SOURCES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_a_change_of_one_place_and_its_test_is_there(name: str) -> None:
    fault = PLANTED[name]
    assert (SOURCES / fault.file).read_text().count(fault.right) == 1, "it is written otherwise now"
    file, *_, test = fault.test.split("::")
    assert f"def {test.split('[')[0]}(" in (ROOT / "tests" / file).read_text()


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTED)
def test_catches_a_fault(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """With a copy of the package that has it, the test fails, which `make test-all` runs."""
    fault = PLANTED[name]
    package = tmp_path / SOURCES.name
    shutil.copytree(SOURCES, package, ignore=shutil.ignore_patterns("__pycache__"))
    path = package / fault.file
    path.write_text(path.read_text().replace(fault.right, fault.wrong))
    options = ("-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-m", "not long")
    began = perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(ROOT / "tests" / fault.test)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "1 failed" in done.stdout, done.stdout
    for key, value in (
        ("slot", fault.file),
        ("mutant", name),
        ("caught by", fault.test.rpartition("/")[2]),
        ("written", "yes"),
        ("seconds", f"{perf_counter() - began:.1f}"),
    ):
        record_property(key, value)
