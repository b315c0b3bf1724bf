"""The shim runs CUDA kernels on the CPU, and finds what is wrong with them."""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Mapping
from ctypes import c_int, c_void_p
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from paged_backends.kernels.cuda.emulation import EmulatedModule, Order
from paged_backends.kernels.cuda.kernel import Argument, Grid, KernelError
from unit.emulated_kernels import Workshop

SOURCE = Path(__file__).parent / "simt_kernels" / "right_and_wrong.cu"

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
RIGHT = {
    "reversed_by_shared_memory": lambda x: x.flip(0),
    "sums_of_warps": lambda x: x.view(2, 32).sum(1, keepdim=True).expand(2, 32).reshape(64) + 3,
    "halves_of_a_warp": lambda x: x.view(4, 16)[:, :1].expand(4, 16).reshape(64),
    "neighbours_in_a_warp": lambda x: x.view(32, 2).flip(1).reshape(64),
    "two_groups_of_copies": lambda x: x + 100 * x * (torch.arange(64) // 4 % 2 == 0),
}
"""Kernels without a mistake, and what they make of 64 numbers."""


class Numbers(ctypes.Structure):
    _fields_: ClassVar[Any] = [("data", c_void_p), ("size", c_int)]


def launch(module: EmulatedModule, name: str, data: Tensor, grid: Grid = (1, 1, 1)) -> None:
    module.declare({"numbers": data})
    argument = Argument(Numbers(data.data_ptr(), len(data)))
    module.kernel(name, ctypes.sizeof(Numbers)).launch(grid, argument, 0)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, EmulatedModule]:
    folder = tmp_path_factory.mktemp("shim")
    return {
        "host": Workshop(folder, checked=False).module(SOURCE),
        "checked": Workshop(folder, checked=True).module(SOURCE),
    }


@pytest.fixture(params=["host", "checked"])
def module(request: pytest.FixtureRequest, modules: Mapping[str, EmulatedModule]) -> EmulatedModule:
    modules[request.param].set_order("up")
    return modules[request.param]


@pytest.fixture
def host(modules: Mapping[str, EmulatedModule]) -> EmulatedModule:
    modules["host"].set_order("up")
    return modules["host"]


@pytest.fixture
def checked(modules: Mapping[str, EmulatedModule]) -> EmulatedModule:
    modules["checked"].set_order("up")
    return modules["checked"]


@pytest.mark.parametrize("order", ["up", "down", "by chance"])
@pytest.mark.parametrize("name", RIGHT)
def test_kernels_without_a_mistake(module: EmulatedModule, name: str, order: Order) -> None:
    module.set_order(order, seed=1)
    data = torch.randint(0, 100, (64,)).float()
    wanted = RIGHT[name](data.clone())
    launch(module, name, data)
    assert torch.equal(data, wanted)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_always_found(module: EmulatedModule, name: str) -> None:
    with pytest.raises(KernelError, match=rf"kernel {name}: .*thread [0-9]+: .*{WRONG[name]}"):
        launch(module, name, torch.zeros(64))
    data = torch.arange(64.0)  # the next launch is not affected
    launch(module, "reversed_by_shared_memory", data)
    assert data[0] == 63


@pytest.mark.parametrize("name", WRONG_IF_CHECKED)
def test_what_is_found_if_checked(checked: EmulatedModule, name: str) -> None:
    with pytest.raises(KernelError, match=WRONG_IF_CHECKED[name]) as caught:
        launch(checked, name, torch.zeros(80), (2, 1, 1))
    lines = SOURCE.read_text().splitlines()
    found = str(caught.value).split("right_and_wrong.cu:")[1].split(":")[0]
    begin = next(i for i, line in enumerate(lines) if f"KERNEL({name})" in line)
    end = next(i for i in range(begin, len(lines)) if lines[i].endswith("}"))
    assert begin < int(found) <= end + 1


@pytest.mark.parametrize("name", UNWRITTEN)
def test_what_was_not_written_is_nan(host: EmulatedModule, name: str) -> None:
    data = torch.zeros(64)
    launch(host, name, data)
    assert data.isnan().sum() >= 16


def test_blocks_have_their_indices(module: EmulatedModule) -> None:
    data = torch.zeros(24)
    launch(module, "indices", data, (2, 3, 4))
    x, y, z = torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(4), indexing="ij")
    assert torch.equal(data.view(4, 3, 2), (x + 10 * y + 100 * z).permute(2, 1, 0).float())


def test_orders_of_threads(host: EmulatedModule) -> None:
    found = {}
    for order, seed in (("up", 0), ("down", 0), ("by chance", 1), ("by chance", 2)):
        host.set_order(order, seed)
        data = torch.zeros(65)
        launch(host, "order_of_threads", data)
        found[order, seed] = data[:64].int().tolist()
    everyone = list(range(64))
    assert found["up", 0] == everyone
    assert found["down", 0][:32] == everyone[31::-1]
    assert all(sorted(threads) == everyone for threads in found.values())
    assert len({tuple(threads) for threads in found.values()}) == 4


def test_conversions_round_as_torch_does(host: EmulatedModule) -> None:
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = torch.cat([halves.view(torch.float16).float(), halves.view(torch.bfloat16).float()])
    between = torch.randint(-(2**31), 2**31, (200_000,)).to(torch.int32).view(torch.float32)
    ties = (every[:-1] + every[1:]) / 2
    values = torch.cat([every, between, ties, every.nextafter(torch.tensor(9.0))])
    data = torch.cat([values, values])
    launch(host, "rounded", data, (8, 1, 1))
    half, brain = data.view(2, -1)
    torch.testing.assert_close(half, values.half().float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(brain, values.bfloat16().float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "grid", [(0, 1, 1), (1, 65_536, 1), (1, 1, 65_536), (2**31, 1, 1)], ids=str
)
def test_grids_that_no_gpu_takes(host: EmulatedModule, grid: Grid) -> None:
    with pytest.raises(KernelError, match="a grid of "):
        launch(host, "indices", torch.zeros(1), grid)


def test_kernels_that_there_are_not(host: EmulatedModule) -> None:
    with pytest.raises(KernelError, match="there is no kernel surprise"):
        launch(host, "surprise", torch.zeros(1))


def test_launches_from_several_threads_take_turns(host: EmulatedModule) -> None:
    rows = torch.arange(64.0).repeat(4, 1)

    def reverse(row: Tensor) -> None:
        for _ in range(51):
            launch(host, "reversed_by_shared_memory", row)

    threads = [threading.Thread(target=reverse, args=(row,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(rows, torch.arange(64.0).flip(0).repeat(4, 1))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere there is only this way")
def test_fibers_where_there_is_no_switch_of_our_own(tmp_path: Path) -> None:
    made = Workshop(tmp_path, checked=False, flags=("-DSIMT_UCONTEXT",)).module(SOURCE)
    for name in RIGHT:
        test_kernels_without_a_mistake(made, name, "by chance")
    made.set_order("up")
    for name in WRONG:
        test_what_is_always_found(made, name)
