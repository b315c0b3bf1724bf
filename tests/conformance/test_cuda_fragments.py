"""Fragments of tensor cores lie where NVIDIA says, in the emulation."""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from paged_backends.kernels.cuda.kernel import Argument, KernelModule
from unit import emulated_kernels
from unit.emulated_kernels import Workshop

SOURCE = Path(emulated_kernels.__file__).parent / "simt_kernels" / "fragments.cu"


class Matrices(ctypes.Structure):
    _fields_: ClassVar[Any] = [(name, c_void_p) for name in ("a", "b", "c", "other")]


def multiply(module: KernelModule, name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the product of ``a`` and the transpose of ``b``, as computed in both ways."""
    c, other = torch.zeros(2, len(a), len(b), device=a.device)
    module.declare({"a": a, "b": b, "c": c, "other": other})
    call = Matrices(a.data_ptr(), b.data_ptr(), c.data_ptr(), other.data_ptr())
    kernel = module.kernel(name, ctypes.sizeof(Matrices))
    kernel.launch((1, 1, 1), Argument(call), module.stream())
    return c.cpu(), other.cpu()


class FragmentCases:
    """What holds wherever the kernels of :data:`SOURCE` run."""

    device: ClassVar[str]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_a_product(self, module: KernelModule, dtype: torch.dtype) -> None:
        a, b = (torch.randn(rows, 16, device=self.device).to(dtype) for rows in (16, 8))
        made, _ = multiply(module, f"product_{str(dtype).removeprefix('torch.')}", a, b)
        torch.testing.assert_close(made, (a.double() @ b.double().T).float().cpu())

    def test_fragments_from_shared_memory(self, module: KernelModule) -> None:
        a, b = (torch.randn(16, 16, device=self.device).bfloat16() for _ in range(2))
        wanted = (a.double() @ b.double().T).float().cpu()
        for made in multiply(module, "product_from_shared_memory", a, b):
            torch.testing.assert_close(made, wanted)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> KernelModule:
    return Workshop(tmp_path_factory.mktemp("fragments"), checked=True).module(SOURCE)


class TestEmulated(FragmentCases):
    device = "cpu"
