"""Tests with a cluster of Ray, each file in a process of its own, side by side.

Ray ends the process that is connected with a cluster when it thinks that this is lost, and calls
of Ray may wait for ever where no signal reaches them: neither may happen to a whole test run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not find_spec("ray"), reason="needs ray: pip install 'paged-core[ray]'"),
]
TESTS = Path(__file__).parents[1]
SECONDS = 600
each_run = pytest.mark.parametrize(
    "chosen", ["not long", pytest.param("long", marks=pytest.mark.long)]
)


def check(file: str, chosen: str) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-m", chosen, str(TESTS / file)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as run:
        try:
            said, _ = run.communicate(timeout=SECONDS)
        finally:
            if run.poll() is None:
                for process in psutil.Process(run.pid).children(recursive=True):
                    process.kill()
                run.kill()
    assert run.returncode == 0, said


class TestEngines:
    @each_run
    def test_pass(self, chosen: str) -> None:
        check("server/ray_replicas.py", chosen)


class TestRanks:
    @each_run
    def test_pass(self, chosen: str) -> None:
        check("integration/ranks_on_ray.py", chosen)
