"""Imports of each command: starting up must not cost what is not used."""

from __future__ import annotations

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
    if "--help" in program or "attention" in program:  # neither reads settings
        assert not loaded & {"pydantic_settings", "yaml", "paged_core.settings.schema"}


def test_importing_the_package_imports_no_plugin() -> None:
    loaded = modules_after("import paged_core")
    assert not loaded & {*HEAVY, "typer", "rich", "paged_policies", "paged_backends"}


@pytest.mark.heavy
def test_doctor_imports_no_model_code() -> None:
    loaded = modules_after("from paged_core.cli import main; assert main(['doctor']) == 0")
    assert {"torch", "paged_backends.runners.transformers.runner"} <= loaded
    assert not loaded & {"transformers.modeling_utils", "torch._dynamo", "scipy.optimize"}
