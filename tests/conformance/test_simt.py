"""CUDA run on the CPU does what NVIDIA says, and finds what is wrong with a kernel.

What kernels without a mistake make is asked of GPUs too, by tests/gpu/test_simt.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_int, c_void_p
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from emulation.cuda_module import SIMT, EmulatedModule, Order
from emulation.workshop import Workshop
from paged_backends.kernels.cuda.kernel import Argument, Grid, KernelError, KernelModule

pytestmark = pytest.mark.heavy
checked = pytest.mark.long  # a build that takes long
KERNELS = SIMT.parent / "kernels"


class Matrices(ctypes.Structure):
    _fields_: ClassVar[Any] = [(name, c_void_p) for name in ("a", "b", "c", "other")]


class Numbers(ctypes.Structure):
    _fields_: ClassVar[Any] = [("data", c_void_p), ("size", c_int)]


def multiply(module: KernelModule, name: str, **matrices: Tensor) -> None:
    """Let a kernel fill ``c`` and ``other`` with products of ``a`` and ``b``."""
    module.declare({**matrices})
    call = Matrices(**{name: one.data_ptr() for name, one in matrices.items()})
    kernel = module.kernel(name, ctypes.sizeof(Matrices))
    kernel.launch((1, 1, 1), Argument(call), module.stream())


class TensorCoreCases:
    """Where tensor cores find their operands, wherever kernels run."""

    device: ClassVar[str]

    def random(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(rows, columns, device=self.device).to(dtype)

    def zeros(self, rows: int, columns: int) -> Tensor:
        return torch.zeros(rows, columns, device=self.device)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_a_product_of_a_warp(self, fragments: KernelModule, dtype: torch.dtype) -> None:
        a, b = self.random(16, 16, dtype), self.random(8, 16, dtype)
        c, other = self.zeros(16, 8), self.zeros(16, 8)
        name = f"product_{str(dtype).removeprefix('torch.')}"
        multiply(fragments, name, a=a, b=b, c=c, other=other)
        torch.testing.assert_close(c, (a.double() @ b.double().T).float())

    def test_fragments_from_shared_memory(self, fragments: KernelModule) -> None:
        a, b = (self.random(16, 16, torch.bfloat16) for _ in range(2))
        c, other = self.zeros(16, 16), self.zeros(16, 16)
        multiply(fragments, "product_from_shared_memory", a=a, b=b, c=c, other=other)
        for made in (c, other):
            torch.testing.assert_close(made, (a.double() @ b.double().T).float())

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_products_of_a_warpgroup(self, products: KernelModule, dtype: torch.dtype) -> None:
        a, b = (self.random(64, 128, dtype) for _ in range(2))
        c, other = self.zeros(64, 64), self.zeros(64, 128)
        name = f"products_{str(dtype).removeprefix('torch.')}"
        multiply(products, name, a=a, b=b, c=c, other=other)
        wide, tall = a.double(), b.double()
        torch.testing.assert_close(c, (wide @ tall.T).float(), rtol=1e-5, atol=1e-4)
        wanted = (wide[:, :64] @ tall).float()
        torch.testing.assert_close(other, wanted, rtol=1e-5, atol=1e-4)


@pytest.fixture(scope="module")
def workshops(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Workshop]:
    folder = tmp_path_factory.mktemp("simt")
    return {name: Workshop(folder, checked=name == "checked") for name in ("host", "checked")}


@pytest.fixture(scope="module")
def fragments(workshops: Mapping[str, Workshop]) -> KernelModule:
    return workshops["checked"].module(KERNELS / "fragments.cu")


@pytest.fixture(scope="module")
def products(workshops: Mapping[str, Workshop]) -> KernelModule:
    return workshops["checked"].module(KERNELS / "products.cu")


@checked
class TestEmulated(TensorCoreCases):
    device = "cpu"


# ---------------------------------------------------------------------- mistakes

RIGHT = {
    "reversed_by_shared_memory": lambda x: x.flip(0),
    "sums_of_warps": lambda x: x.view(2, 32).sum(1, keepdim=True).expand(2, 32).reshape(64) + 3,
    "halves_of_a_warp": lambda x: x.view(4, 16)[:, :1].expand(4, 16).reshape(64),
    "neighbours_in_a_warp": lambda x: x.view(32, 2).flip(1).reshape(64),
    "two_groups_of_copies": lambda x: x + 100 * x * (torch.arange(64) // 4 % 2 == 0),
}
"""Kernels without a mistake, and what they make of 64 numbers."""
WRONG = {
    "divergent_barrier": "40 threads wait at a barrier that 24 threads never reach",
    "two_barriers": "a barrier, while others wait at that of line",
    "lane_outside_mask": "lane 20 is read, and is not in mask ffff",
    "lane_not_in_its_mask": "lane 16 is not in its mask ffff",
    "lanes_that_never_come": "lanes ffff of warp 0 wait for lanes ffff0000, which never come",
    "two_shuffles": "an operation of the warp, while others wait at that of line",
    "masks_that_overlap": "while lanes of it wait in mask",
    "copy_never_waited_for": "a copy is never waited for",
    "copy_to_an_odd_place": "a copy of 16 B from",
    "matrix_at_an_odd_place": "a row of a matrix at",
    "rows_in_the_same_banks": "rows of a matrix lie in the same banks",
    "too_little_shared_memory": "B of shared memory are used, and 16 B are there",
}
"""Kernels with a mistake that is always found, and what is said of it."""


def launch(module: EmulatedModule, name: str, data: Tensor, grid: Grid = (1, 1, 1)) -> Tensor:
    module.declare({"numbers": data})
    argument = Argument(Numbers(data.data_ptr(), len(data)))
    module.kernel(name, ctypes.sizeof(Numbers)).launch(grid, argument, 0)
    return data


@pytest.fixture(scope="module")
def host(workshops: Mapping[str, Workshop]) -> EmulatedModule:
    return workshops["host"].module(KERNELS / "right_and_wrong.cu")


def test_mistakes_are_found_and_no_others(host: EmulatedModule) -> None:
    host.set_order("by chance", seed=1)
    for name, made in RIGHT.items():
        data = torch.randint(0, 100, (64,)).float()
        wanted = made(data.clone())
        assert torch.equal(launch(host, name, data), wanted), name
    host.set_order("up")
    for name, said in WRONG.items():
        with pytest.raises(KernelError, match=rf"kernel {name}: .*thread [0-9]+: .*{said}"):
            launch(host, name, torch.zeros(64))
        # the next launch is not affected
        assert launch(host, "reversed_by_shared_memory", torch.arange(64.0))[0] == 63


def test_threads_and_blocks_run_in_the_order_that_is_chosen(host: EmulatedModule) -> None:
    def found(order: Order, seed: int = 0) -> tuple[list[float], float]:
        host.set_order(order, seed)
        threads = launch(host, "order_of_threads", torch.zeros(65))[:64]
        return threads.tolist(), float(launch(host, "last_block", torch.zeros(64), (3, 1, 1))[0])

    up, down = found("up"), found("down")
    assert up == ([*range(64)], 2)
    assert down == ([*range(31, -1, -1), *range(63, 31, -1)], 0)
    by_chance, _ = found("by chance", 1)
    assert sorted(by_chance) == up[0]
    assert by_chance == found("by chance", 1)[0] != found("by chance", 2)[0]


@pytest.mark.parametrize("grid", [(1, 65_536, 1), (1, 1, 65_536), (0, 1, 1)])
def test_a_grid_that_a_gpu_does_not_take_is_refused(host: EmulatedModule, grid: Grid) -> None:
    with pytest.raises(KernelError, match="a grid of"):
        launch(host, "last_block", torch.zeros(64), grid)


def test_conversions_round_as_torch_does(host: EmulatedModule) -> None:
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = torch.cat([halves.view(torch.float16).float(), halves.view(torch.bfloat16).float()])
    between = torch.randint(-(2**31), 2**31, (200_000,)).to(torch.int32).view(torch.float32)
    ties = (every[:-1] + every[1:]) / 2
    values = torch.cat([every, between, ties, every.nextafter(torch.tensor(9.0))])
    made = launch(host, "rounded", torch.cat([values, values]), (8, 1, 1))
    half, brain = made.view(2, -1)
    torch.testing.assert_close(half, values.half().float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(brain, values.bfloat16().float(), rtol=0, atol=0, equal_nan=True)
