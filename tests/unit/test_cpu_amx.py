"""Tile registers: the order in which they add, emulated and, where there are any, real."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import structlog
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.kernels.cpu import bindings
from paged_backends.kernels.cpu.bindings import Bindings
from paged_backends.kernels.cpu.compiler import SETS, CppCompiler, NoSuchInstructions, choose
from paged_testing.attention_scene import Scene
from unit.cpu_kernels import load
from unit.test_cpu_attention import backend, layer

pytestmark = pytest.mark.heavy


TILE_DEPTH = 32
TILES = ["avx512_amx", "avx512_amx_emulated", "portable_amx_emulated"]


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def as_tiles_add(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` [R, K] times ``weight`` [N, K], transposed: what AMX computes, to the bit.

    Of every 32 numbers of K, the even and the odd ones are two chains of float32 additions; their
    sum is added to the result. A product of two bfloat16 is exact in float32.
    """
    depth = -(-x.shape[1] // TILE_DEPTH) * TILE_DEPTH

    def padded(numbers: Tensor) -> NDArray[np.float32]:
        wide = np.zeros((len(numbers), depth), np.float32)
        wide[:, : numbers.shape[1]] = numbers.float().numpy()
        return wide

    rows, columns = padded(x), padded(weight)
    total = np.zeros((len(rows), len(columns)), np.float32)
    for start in range(0, depth, TILE_DEPTH):
        even, odd = np.zeros_like(total), np.zeros_like(total)
        for k in range(start, start + TILE_DEPTH, 2):
            even += np.outer(rows[:, k], columns[:, k])
            odd += np.outer(rows[:, k + 1], columns[:, k + 1])
        total += even + odd
    return torch.from_numpy(total).bfloat16()


@pytest.mark.parametrize("name", TILES)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 200),
    width=st.integers(1, 150),
    seed=st.integers(0, 99),
)
def test_linear_adds_in_the_order_of_the_tiles(
    name: str, rows: int, columns: int, width: int, seed: int
) -> None:
    kernels = load(name)
    x, weight = random(rows, columns, seed=seed), random(width, columns, seed=seed + 1)
    assert torch.equal(kernels.linear(x, kernels.pack(weight)), as_tiles_add(x, weight))


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("rows", [33, 700, 1500])
def test_many_rows_add_in_the_same_order(name: str, rows: int) -> None:
    """Enough rows and panels that items, runs and what is fetched ahead follow one another."""
    kernels = load(name)
    x, weight = random(rows, 416, seed=1), random(700, 416, seed=2)
    found = kernels.linear(x, kernels.pack(weight))
    some = [0, 15, 16, 31, 32, rows // 2, rows - 1]
    assert torch.equal(found[some], as_tiles_add(x[some], weight))


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("columns", [1, 32, 70])
@pytest.mark.parametrize("power", [-67, -70])
def test_a_sum_that_is_denormal_is_a_zero(name: str, columns: int, power: int) -> None:
    """Zeros of tile registers are positive, and those of their emulation have the sum's sign."""
    kernels = load(name)
    x = torch.full((3, columns), 2.0**power).bfloat16()
    weight = torch.stack([x[0], -x[0], 0 * x[0]])
    found = kernels.linear(x, kernels.pack(weight))
    assert not found.any()
    assert found.signbit().tolist() == [[False, name != TILES[0], False]] * 3


@pytest.mark.parametrize("name", TILES)
def test_what_lies_behind_a_row_does_not_matter(name: str) -> None:
    """A tile reads whole lines: numbers behind the last column are no part of the product."""
    kernels = load(name)
    wide = random(40, 96, seed=3)
    wide[:, 40:] = float("nan")
    x, weight = wide[:, :40], random(50, 40, seed=4)
    assert torch.equal(kernels.linear(x, kernels.pack(weight)), as_tiles_add(x, weight))


def attended(name: str, **changes: Any) -> Tensor:
    chunks = [(0, 300), (130, 45), (700, 1), (5, 2), *[(200 + i, 1) for i in range(9)]]
    scene = Scene(backend(name), layer("bfloat16", **changes), chunks, 5)
    return torch.cat(scene.run(list(range(len(chunks)))))


@pytest.mark.parametrize("name", ["avx512_amx_emulated"])
@pytest.mark.parametrize("changes", [{"head_dim": 40}, {"sliding_window": 90}], ids=str)
def test_attention_has_the_same_bits_where_tiles_are_emulated(
    name: str, changes: dict[str, Any]
) -> None:
    assert torch.equal(attended("avx512_amx", **changes), attended(name, **changes))


def test_emulated_attention_is_close_on_any_machine() -> None:
    changes = {"soft_cap": 5.0, "sliding_window": 90}
    one, other = attended("portable_amx_emulated", **changes), attended("portable", **changes)
    torch.testing.assert_close(one.float(), other.float(), atol=2e-2, rtol=2e-2)


# ------------------------------------------------------------------ permission


@pytest.fixture
def refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system does not give the first library that is loaded what it asks for."""
    asked: list[str] = []

    class Refused(ctypes.CDLL):
        def __getattr__(self, name: str) -> Any:
            if name != "paged_core_ask_permission" or asked:
                return super().__getattr__(name)
            asked.append(name)
            return Mock(return_value=errno.ENOSPC)

    monkeypatch.setattr(bindings.ctypes, "CDLL", Refused)


@pytest.mark.usefixtures("refused_once")
def test_a_set_that_the_system_refuses_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    best, *_, plainest = (one.name for one in choose("auto", CppCompiler.find()))
    few = [one for one in SETS if one.name in (best, plainest)]
    monkeypatch.setattr(bindings, "choose", lambda *_: few)
    with structlog.testing.capture_logs() as logs:
        chosen = Bindings.load().instruction_set
    assert chosen == plainest
    (passed,) = (log for log in logs if log["event"] == "instruction_set_passed_over")
    assert passed["name"] == best
    assert "does not let this process use" in passed["reason"]


@pytest.mark.usefixtures("refused_once")
def test_a_set_that_was_named_and_is_refused_is_an_error() -> None:
    with pytest.raises(NoSuchInstructions, match=f"use portable: {os.strerror(errno.ENOSPC)}"):
        Bindings.load("portable")
