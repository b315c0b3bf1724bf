"""CUDA run on the CPU does what NVIDIA says, and finds what is wrong with a kernel.

What kernels without a mistake make is asked of GPUs too, by tests/gpu/test_simt.py.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_void_p
from pathlib import Path
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
    "too_little_shared_memory": "B of shared memory are used, and 16 B are there",
}
"""Kernels with a mistake that is always found, and what is said of it."""
UNWRITTEN = ("read_before_written", "copy_never_committed", "copy_read_too_soon")
"""Kernels that read shared memory which holds nothing."""
WRONG_IF_CHECKED = {
    **dict.fromkeys(UNWRITTEN, "of shared memory is read, and was never written"),
    "no_barrier_before_reading": "is read, and thread [0-9]+ of block 0 has written it with no",
    "no_barrier_before_writing": "is written, and thread [0-9]+ of block 0 has read it with no",
    "no_barrier_after_reading_of_others": "is written, and thread 30 of block 0 has read it with",
    "no_barrier_after_reading_of_another_warp": "is written, and thread 6[23] of block 0 has read",
    "warp_barrier_between_warps": "is read, and thread [0-9]+ of block 0 has written it with no",
    "copy_read_by_another_thread": "is read, and thread 0 of block 0 has written it with no",
    "blocks_that_race": "byte 0 of numbers is written, and thread 0 of block 0 has written it",
    "read_beyond_the_end": "4 B are read 4 B beyond the end of numbers",
    "write_beyond_the_end": "4 B are written 4 B beyond the end of numbers",
    "read_of_no_buffer": "4 B at 0x40 are read, and no buffer is there",
    "beyond_shared_memory": "4 B are written beyond the end of shared memory",
    "stack_of_another_thread": "the stack of another thread is read",
    "odd_address": "is not a multiple of 16",
    "product_beyond_32_bits": "a product of 80 and 100000000 has more than 32 bits",
    "index_outside_of_its_array": "index 80 is outside of its array",
}
WRONG_PRODUCTS = {
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


def launch(module: EmulatedModule, name: str, data: Tensor, grid: Grid = (1, 1, 1)) -> Tensor:
    module.declare({"numbers": data})
    argument = Argument(Numbers(data.data_ptr(), len(data)))
    module.kernel(name, ctypes.sizeof(Numbers)).launch(grid, argument, 0)
    return data


@pytest.fixture(scope="module")
def host(workshops: Mapping[str, Workshop]) -> EmulatedModule:
    return workshops["host"].module(KERNELS / "right_and_wrong.cu")


@pytest.fixture(scope="module")
def watched(workshops: Mapping[str, Workshop]) -> EmulatedModule:
    """The same kernels in the checked build."""
    return workshops["checked"].module(KERNELS / "right_and_wrong.cu")


def check(module: EmulatedModule) -> None:
    """Find the mistakes that are always found, and none where there is none."""
    module.set_order("by chance", seed=1)
    for name, made in RIGHT.items():
        data = torch.randint(0, 100, (64,)).float()
        wanted = made(data.clone())
        assert torch.equal(launch(module, name, data), wanted), name
    module.set_order("up")
    for name, said in WRONG.items():
        with pytest.raises(KernelError, match=rf"kernel {name}: .*thread [0-9]+: .*{said}"):
            launch(module, name, torch.zeros(64))
        # the next launch is not affected
        assert launch(module, "reversed_by_shared_memory", torch.arange(64.0))[0] == 63


def test_mistakes_are_found_and_no_others(host: EmulatedModule) -> None:
    check(host)


def test_threads_and_blocks_run_in_the_order_that_is_chosen(host: EmulatedModule) -> None:
    """Of kernels in which it matters: no thread has written yet what the one after it reads."""
    orders: Sequence[Order] = ("up", "down")
    found = []
    for order in orders:
        host.set_order(order)
        unwritten = launch(host, "no_barrier_before_reading", torch.ones(64)).isnan().sum()
        last = launch(host, "blocks_that_race", torch.zeros(64), (3, 1, 1))[0]
        found.append((int(unwritten), int(last)))
    assert found == [(0, 2), (62, 0)]


@pytest.mark.parametrize("grid", [(1, 65_536, 1), (1, 1, 65_536), (0, 1, 1)])
def test_a_grid_that_a_gpu_does_not_take_is_refused(host: EmulatedModule, grid: Grid) -> None:
    with pytest.raises(KernelError, match="a grid of"):
        launch(host, "blocks_that_race", torch.zeros(64), grid)


@checked
def test_what_is_found_if_checked(host: EmulatedModule, watched: EmulatedModule) -> None:
    lines = (KERNELS / "right_and_wrong.cu").read_text().splitlines()
    check(watched)
    for name, said in WRONG_IF_CHECKED.items():
        with pytest.raises(KernelError, match=said) as caught:
            launch(watched, name, torch.zeros(80), (2, 1, 1))
        found = str(caught.value).split("right_and_wrong.cu:")[1].split(":")[0]
        begin = next(i for i, line in enumerate(lines) if f"KERNEL({name})" in line)
        end = next(i for i in range(begin, len(lines)) if lines[i].endswith("}"))
        assert begin < int(found) <= end + 1, name
    for name in UNWRITTEN:
        assert launch(host, name, torch.zeros(64)).isnan().sum() >= 16


@checked
def test_mistakes_with_products_are_found(workshops: Mapping[str, Workshop]) -> None:
    module = workshops["checked"].module(KERNELS / "wrong_products.cu")

    def run(name: str) -> Tensor:
        data = torch.zeros(128)
        module.declare({"data": data})
        argument = Argument(Numbers(data.data_ptr()))
        module.kernel(name, ctypes.sizeof(c_void_p)).launch((1, 1, 1), argument, 0)
        return data

    for name, said in WRONG_PRODUCTS.items():
        with pytest.raises(KernelError, match=said):
            run(name)
        assert run("right").eq(16).all()  # the next launch is not affected


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


@checked
@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere there is only this way")
def test_fibers_where_there_is_no_switch_of_our_own(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, checked=False, flags=("-DSIMT_UCONTEXT",))
    check(workshop.module(KERNELS / "right_and_wrong.cu"))
