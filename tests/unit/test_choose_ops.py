"""The choice of operations of runner ``native``, and its errors where there are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from paged_backends.kernels.build import CannotCompile
from paged_backends.runners.native import choice as module
from paged_backends.runners.native.choice import choose_ops, compile_layers
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.settings import NativeSettings
from paged_core.errors import SettingsError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def chosen(device: torch.device, **options: Any) -> Ops:
    return choose_ops(NativeSettings(**options), torch.bfloat16, device)


@pytest.mark.parametrize("kernels", ["auto", "triton", "avx2"])
def test_a_gpu_has_kernels_in_triton(kernels: str) -> None:
    triton_ops = pytest.importorskip("paged_backends.runners.native.triton_ops")
    assert isinstance(chosen(CUDA, kernels=kernels), triton_ops.TritonOps)


def test_off_is_plain_pytorch_everywhere() -> None:
    for device in (CPU, CUDA):
        ops = chosen(device, kernels="off")
        assert type(ops) is Ops
        assert ops.computes_quantized == (device == CPU)


def test_without_triton_plain_pytorch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with capture_logs() as logs:
        assert type(chosen(CUDA)) is Ops
    (entry,) = logs
    assert entry["event"] == "kernels_missing"
    assert "pip install 'paged-core[gpu]'" in entry["reason"]


def test_triton_on_a_cpu_must_be_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_ops = pytest.importorskip("paged_backends.runners.native.triton_ops")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert isinstance(chosen(CPU, kernels="triton"), triton_ops.TritonOps)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(SettingsError, match="needs device: cuda, and this is cpu; in tests"):
        chosen(CPU, kernels="triton")


def test_compiling_takes_the_operations_of_pytorch() -> None:
    for kernels in ("auto", "off"):
        ops = chosen(CPU, compile=True, kernels=kernels)
        assert type(ops) is Ops
        assert not ops.computes_quantized
    with pytest.raises(SettingsError, match="asks for triton; leave one of them out"):
        chosen(CPU, compile=True, kernels="triton")


def test_layers_that_cannot_be_compiled_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "paged_backends.runners.native.choice."
    monkeypatch.setattr(path + "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"runner\.compile: triton is not installed: pip"):
        compile_layers([], CUDA)
    monkeypatch.setattr(path + "find_compiler", lambda: CannotCompile("no C++ compiler"))
    with pytest.raises(SettingsError, match=r"runner\.compile: no C\+\+ compiler; leave it out"):
        compile_layers([], CPU)
