"""The command, a load for engines in processes, a layer: for tests of ``paged-core bench``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paged_core.cli import main
from paged_core.interfaces.layer import LayerSpec
from paged_plugins.lab.tasks.peers import Load

LAYER = LayerSpec(
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    scale=8**-0.5,
    dtype="float32",
    device="cpu",
    block_size=4,
)


def runner(*command: str) -> Callable[..., str]:
    """Return what runs ``paged-core bench COMMAND`` with more arguments and expects a status; it
    returns what is printed, or on status 2 the reason."""

    def run(capture: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
        assert main(["bench", *command, *argv], {"PATH": ""}) == status
        out, err = capture.readouterr()
        assert "Traceback" not in err
        return err if status == 2 else out

    return run


def load(model: object = "m", **changes: Any) -> Load:
    """Return a small load in float32; ``changes`` are fields that differ."""
    fields: dict[str, Any] = {
        "dtype": "float32",
        "threads": 1,
        "max_model_len": 64,
        "longest_request": 64,
        "cache_gib": 1,
        "settings": {},
        **changes,
    }
    return Load(model=str(model), **fields)
