"""Why PyTorch can use no NVIDIA GPU, and the command that would help."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paged_backends.kernels import nvidia
from paged_backends.kernels.nvidia import gpu_problem, has_driver


@pytest.mark.parametrize(
    ("driver", "cuda", "available", "problem"),
    [
        (False, None, False, "there is no NVIDIA GPU here"),
        (False, "13.0", False, "there is no NVIDIA GPU here"),
        (True, None, False, "`pip install --force-reinstall torch --index-url "),
        (True, "13.0", False, "finds no CUDA device; see what `nvidia-smi` says"),
        (True, "13.0", True, None),
        (False, "13.0", True, None),
    ],
)
def test_the_reason(
    driver: bool,
    cuda: str | None,
    available: bool,
    problem: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = tmp_path if driver else tmp_path / "missing"
    monkeypatch.setattr(nvidia, "_DEVICES", (str(there),))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert has_driver() == driver
    found = gpu_problem()
    assert found is None if problem is None else problem in str(found)
