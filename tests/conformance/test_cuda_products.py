"""Products of warpgroups read operands where NVIDIA says, in the emulation; mistakes are found."""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from conformance.test_cuda_fragments import Matrices
from paged_backends.kernels.cuda.emulation import EmulatedModule
from paged_backends.kernels.cuda.kernel import Argument, KernelError, KernelModule
from unit import emulated_kernels
from unit.emulated_kernels import Workshop

KERNELS = Path(emulated_kernels.__file__).parent / "simt_kernels"
SOURCE = KERNELS / "products.cu"

WRONG = {
    "not_handed_over": "registers of the result were used, and not handed over since",
    "changed_after_it_was_handed_over": "registers of A were used, and not handed over since",
    "not_handed_over_again": "not handed over since",
    "result_read_too_soon": "registers of the result were changed before it was there",
    "never_committed": "a product is never waited for",
    "never_waited_for": "a product is never waited for",
    "weights_changed_too_soon": "registers of A were changed while a product read them",
    "not_taken_back": "registers of the result are not taken back by the wait for it",
    "overwritten_too_soon": "shared memory was changed while a product read it",
    "beyond_shared_memory": "a product reads byte 8192 of 8192 of shared memory",
    "different_warps": "the warps of a warpgroup start different products",
    "a_warp_alone": "warp 1 has started 0 products, and its warpgroup 1",
    "not_shown": "has written it and not shown it to products",
    "shown_after_the_barrier": "has written it and not shown it to products",
    "no_barrier": "has written it with no barrier between|was never written",
}
"""Kernels with a mistake, and what is said of it."""


class Call(ctypes.Structure):
    _fields_: ClassVar[Any] = [("data", c_void_p)]


class ProductCases:
    """What holds wherever the kernels of :data:`SOURCE` run."""

    device: ClassVar[str]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_products(self, products: KernelModule, dtype: torch.dtype) -> None:
        a, b = (torch.randn(64, 128, device=self.device).to(dtype) for _ in range(2))
        c, other = torch.zeros(64, 64, device=self.device), torch.zeros(64, 128, device=self.device)
        products.declare({"a": a, "b": b, "c": c, "other": other})
        call = Matrices(*(one.data_ptr() for one in (a, b, c, other)))
        name = f"products_{str(dtype).removeprefix('torch.')}"
        kernel = products.kernel(name, ctypes.sizeof(Matrices))
        kernel.launch((1, 1, 1), Argument(call), products.stream())
        wide, tall = a.double(), b.double()
        torch.testing.assert_close(c.cpu(), (wide @ tall.T).float().cpu(), rtol=1e-5, atol=1e-4)
        wanted = (wide[:, :64] @ tall).float().cpu()
        torch.testing.assert_close(other.cpu(), wanted, rtol=1e-5, atol=1e-4)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("products"), checked=True)


@pytest.fixture(scope="module")
def products(workshop: Workshop) -> KernelModule:
    return workshop.module(SOURCE)


@pytest.fixture(scope="module")
def wrong(workshop: Workshop) -> EmulatedModule:
    return workshop.module(KERNELS / "wrong_products.cu")


class TestEmulated(ProductCases):
    device = "cpu"


def run(module: EmulatedModule, name: str) -> torch.Tensor:
    data = torch.zeros(128)
    module.declare({"data": data})
    module.kernel(name, ctypes.sizeof(Call)).launch((1, 1, 1), Argument(Call(data.data_ptr())), 0)
    return data


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_found(wrong: EmulatedModule, name: str) -> None:
    with pytest.raises(KernelError, match=WRONG[name]):
        run(wrong, name)
    assert run(wrong, "right").eq(16).all()  # the next launch is not affected
