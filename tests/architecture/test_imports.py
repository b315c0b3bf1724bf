"""What is imported when: starting up must not cost what is not used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "fastapi")
FACTORIES = ("paged_backends.attention.torch_attention", "paged_backends.executors.local")


def modules_after(program: str) -> set[str]:
    """Return the modules that a fresh interpreter has after ``program``."""
    report = "import sys; sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "program",
    [
        "from paged_core.plugins.registry import Registry; Registry.discover().of('attention')",
        "from paged_core.settings.schema import EngineSettings; EngineSettings()",
        "from paged_core.cli import main; assert main(['plugins']) == 0",
        "from paged_core.cli import main; assert main(['config', '--json']) == 0",
        "from paged_core.cli import main; assert main(['--help']) == 0",
    ],
)
def test_nothing_heavy_is_imported_to_look_around(program: str) -> None:
    loaded = modules_after(program)
    assert "paged_policies.plugin" in loaded
    assert "paged_backends.plugin" in loaded
    assert not loaded & {*HEAVY, *FACTORIES}


def test_importing_the_package_imports_no_plugin() -> None:
    loaded = modules_after("import paged_core")
    assert not loaded & {*HEAVY, "typer", "rich", "paged_policies", "paged_backends"}


def test_the_former_name_of_the_kit_imports_it_when_it_is_used() -> None:
    kit = {"paged_testing", "pytest", "hypothesis"}
    assert not modules_after("import paged_core.testing") & kit
    assert modules_after("from paged_core.testing import serve") >= kit


def test_doctor_imports_no_model_code() -> None:
    loaded = modules_after("from paged_core.cli import main; assert main(['doctor']) == 0")
    assert {"torch", "paged_backends.runners.transformers.runner"} <= loaded
    assert not loaded & {"transformers.modeling_utils", "torch._dynamo", "scipy.optimize"}


@pytest.mark.parametrize(
    "program",
    [
        "from paged_core.plugins.registry import Registry; Registry.discover().of('attention')",
        "from paged_core.cli import main; assert main(['--help']) == 0",
    ],
)
def test_sources_of_settings_are_imported_to_read_settings(program: str) -> None:
    assert not modules_after(program) & {"pydantic_settings", "yaml", "paged_core.settings.schema"}


def test_help_answers_in_half_a_second() -> None:
    """In processor time, the best of a few: other processes may be taking the processor from it."""
    best = float("inf")
    for _ in range(8):
        before = os.times()
        subprocess.run(
            [sys.executable, "-c", "from paged_core.cli import main; main(['--help'])"],
            capture_output=True,
            check=True,
        )
        after = os.times()
        best = min(best, sum(after[2:4]) - sum(before[2:4]))
        if best < 0.5:
            return
    pytest.fail(f"the fastest of several runs of --help took {best:.2f} s")
