"""The device of a process among those that compute a step together, and why there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paged_backends.device import choose_device
from paged_backends.kernels import nvidia
from paged_backends.kernels.nvidia import (
    capability_problem,
    compute_capability,
    gpu_problem,
    has_driver,
)
from paged_core.errors import SettingsError


@pytest.mark.parametrize(
    ("name", "rank", "found"),
    [
        ("auto", 0, "cuda:0"),
        ("auto", 1, "cuda:1"),
        ("cuda", 1, "cuda:1"),
        ("cuda:1", 0, "cuda:1"),
        ("cuda:1", 1, "cuda:1"),
        ("cpu", 3, "cpu"),
        ("auto", 2, r"cuda:2, for rank 2, is not there: .* sees 2"),
        ("cuda", 2, r"cuda:2, for rank 2, is not there: .* sees 2"),
        ("cuda:5", 0, "device: cuda:5 is not there"),
    ],
)
def test_each_rank_has_its_own_of_two_gpus(
    name: str, rank: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    if "not there" in found:
        with pytest.raises(SettingsError, match=found):
            choose_device(name, rank)
    else:
        assert choose_device(name, rank) == torch.device(found)


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
def test_why_there_is_no_gpu(
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


def test_what_is_older_than_ampere_is_refused() -> None:
    assert capability_problem((8, 0)) is None
    assert capability_problem((12, 1)) is None
    reason = "it needs compute capability 8.0 or more, and the GPU has 7.5"
    assert capability_problem((7, 5)) == reason


def test_the_capability_is_that_of_an_nvidia_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert compute_capability("cuda:0") == (9, 0)
    assert compute_capability("cpu") is None
    monkeypatch.setattr(torch.version, "cuda", None)
    assert compute_capability("cuda:0") is None
