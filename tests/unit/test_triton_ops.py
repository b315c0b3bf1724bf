"""The runner's kernels in Triton against plain PyTorch in float32.

Shapes: T tokens, E width of a row, H query heads, K key heads, D head_dim.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_backends.runners.native.config import Activation, Rope
from paged_backends.runners.native.decoder import Rotary
from paged_backends.runners.native.ops import Ops, frequencies
from unit.triton_device import DEVICE

TritonOps: type[Ops] = pytest.importorskip("paged_backends.runners.native.triton_ops").TritonOps
triton_cache = pytest.importorskip("paged_backends.kernels.triton.cache")

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("watched_accesses")]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32 - 1)
counts = st.integers(0, 5)
widths = st.one_of(st.integers(1, 70), st.sampled_from([128, 255, 1024, 1111]))
brief = settings(max_examples=12, deadline=None)


class Numbers:
    """Draws tensors of one dtype."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype

    def __call__(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=self._generator) * 2
        return drawn.to(device=DEVICE, dtype=self._dtype)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """``expected``: in float32."""
    share = max(4 * torch.finfo(found.dtype).eps, 1e-5)
    torch.testing.assert_close(found.float(), expected, rtol=share, atol=share)


@given(seed=seeds, dtype=dtypes, count=counts, width=widths, eps=st.sampled_from([1e-6, 1e-2]))
@pytest.mark.parametrize("kind", ["rms", "rms of Gemma", "layer", "layer without weights"])
@brief
def test_norms(
    kind: str, seed: int, dtype: torch.dtype, count: int, width: int, eps: float
) -> None:
    numbers = Numbers(seed, dtype)
    rows = numbers(count, width + 3)[:, 2 : width + 2]
    weight, bias, residual = numbers(width), numbers(width), numbers(count, width)

    def norm(ops: Ops, convert: Any) -> Any:
        if kind.startswith("rms"):
            return ops.rms_norm(convert(weight), eps, float("Gemma" in kind))
        given = [None, None] if "without" in kind else [convert(weight), convert(bias)]
        return ops.layer_norm(width, *given, eps)

    found, reference = norm(TritonOps(), lambda tensor: tensor), norm(Ops(), Tensor.float)
    before = rows.clone()
    expected = reference(rows.float())
    assert_close(found(rows), expected)
    expected += residual.float()
    assert found(rows, residual) is residual
    assert_close(residual, expected)
    assert torch.equal(rows, before)


@given(
    seed=seeds,
    dtype=dtypes,
    count=counts,
    heads=st.sampled_from([(1, 1), (4, 2), (7, 1), (16, 8)]),
    half=st.sampled_from([1, 4, 12, 40, 64]),
    norms=st.tuples(st.booleans(), st.booleans()),
)
@pytest.mark.parametrize("rotates", [True, False])
@brief
def test_heads(
    rotates: bool,
    seed: int,
    dtype: torch.dtype,
    count: int,
    heads: tuple[int, int],
    half: int,
    norms: tuple[bool, bool],
) -> None:
    numbers = Numbers(seed, dtype)
    num_heads, num_kv_heads = heads
    fused = numbers(count, num_heads + 2 * num_kv_heads, 2 * half)
    weights = [numbers(2 * half) if has else None for has in norms]
    positions = torch.arange(count, device=DEVICE) * 977 + seed % 5000

    def apply(ops: Ops, fused: Tensor, convert: Any) -> Tensor:
        query, key = fused[:, :num_heads], fused[:, num_heads : num_heads + num_kv_heads]
        rotary = None
        if rotates:
            frequency = frequencies(Rope(theta=1e4), 2 * half).to(DEVICE)
            rotary = ops.rotary(positions, frequency)
        chosen = [None if weight is None else convert(weight) for weight in weights]
        ops.heads(chosen[0], chosen[1], 1e-6, 1.0)(query, key, rotary)
        return fused

    expected = apply(Ops(), fused.float().clone(), Tensor.float)
    values = fused[:, num_heads + num_kv_heads :].clone()
    found = apply(TritonOps(), fused, lambda tensor: tensor)
    assert_close(found, expected)
    assert torch.equal(found[:, num_heads + num_kv_heads :], values)


@given(count=counts, half=st.integers(1, 130), first=st.integers(0, 200_000))
@brief
def test_angles(count: int, half: int, first: int) -> None:
    frequency = frequencies(Rope(theta=5e5), 2 * half).to(DEVICE)
    positions = torch.arange(first, first + count, device=DEVICE)
    found = TritonOps().rotary(positions, frequency)
    expected = Rotary.at(positions, frequency)
    torch.testing.assert_close(found.cos_TF, expected.cos_TF, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.sin_TF, expected.sin_TF, rtol=0, atol=1e-6)


@given(seed=seeds, dtype=dtypes, count=counts, width=widths)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # a sigmoid of 0
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@brief
def test_gates(
    activation: Activation, seed: int, dtype: torch.dtype, count: int, width: int
) -> None:
    rows = Numbers(seed, dtype)(count, 2 * width) * 2
    expected = Ops().gated(activation)(rows.float())
    assert_close(TritonOps().gated(activation)(rows), expected)


@given(seed=seeds, dtype=dtypes, count=counts, width=st.sampled_from([1, 5, 300, 4096, 9001]))
@brief
def test_the_best_token_is_the_first_of_equals(
    seed: int, dtype: torch.dtype, count: int, width: int
) -> None:
    rows = Numbers(seed, dtype)(count, width + 3)[:, :width].round()
    rows = torch.where(rows.abs() == 2, float("-inf"), rows)
    ranked = torch.sort(rows.float(), dim=-1, descending=True, stable=True)
    best, logits = TritonOps().best(rows)
    assert torch.equal(best, ranked.indices[:, 0])
    assert torch.equal(logits, ranked.values[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_is_the_best_token(dtype: torch.dtype) -> None:
    rows = torch.zeros(2, 5000, device=DEVICE, dtype=dtype)
    rows[0, 4999], rows[1, 0] = float("nan"), -float("nan")
    rows[:, 17] = float("inf")
    assert TritonOps().best(rows)[0].tolist() == [4999, 0]


@pytest.mark.parametrize(
    ("origins", "destinations"),
    [([0, 3, 3], [5, 1, 4]), ([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]), ([0, 1], [1, 0])],
    ids=["apart", "in a circle", "overwritten"],
)
@pytest.mark.parametrize("size", [9, 42, 84, 2560], ids="blocks of {} bytes".format)
def test_blocks_of_any_size_are_copied(
    size: int, origins: list[int], destinations: list[int]
) -> None:
    """They are copied in words of 1, 2, 4 and 8 bytes."""
    caches = torch.randint(256, (3, 6, size), dtype=torch.uint8, device=DEVICE)
    wanted = caches.clone()
    wanted[:, destinations] = caches[:, origins]
    triton_cache.copy_blocks(caches, origins, destinations)
    assert torch.equal(caches, wanted)
