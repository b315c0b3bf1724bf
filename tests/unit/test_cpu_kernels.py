"""The operations of the CPU kernels against PyTorch in float64, on every instruction set."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from unit.cpu_kernels import PLAIN_SETS, SETS, load

pytestmark = pytest.mark.heavy


BOUND = {torch.float32: 2e-5, torch.bfloat16: 2e-2}

each_set = pytest.mark.parametrize("name", SETS)
each_plain_set = pytest.mark.parametrize("name", PLAIN_SETS)
each_dtype = pytest.mark.parametrize("dtype", list(BOUND), ids=str)
few = settings(max_examples=15, deadline=None)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: Tensor, wanted: Tensor) -> None:
    bound = BOUND[found.dtype]
    torch.testing.assert_close(found.double(), wanted.double(), atol=bound, rtol=bound)


@each_set
@each_dtype
@few
@given(
    rows=st.integers(1, 30) | st.sampled_from([95, 96, 97, 200]),
    columns=st.integers(1, 200),
    width=st.integers(1, 200),
    seed=st.integers(0, 99),
)
def test_linear(
    name: str, dtype: torch.dtype, rows: int, columns: int, width: int, seed: int
) -> None:
    kernels = load(name)
    x = random(rows, columns, dtype=dtype, seed=seed)
    weight = (random(width, columns, dtype=torch.float32, seed=seed + 1) * columns**-0.5).to(dtype)
    bias = random(width, dtype=dtype, seed=seed + 2)
    residual = random(rows, width, dtype=dtype, seed=seed + 3)
    wanted = x.double() @ weight.double().T
    packed = kernels.pack(weight)
    close(kernels.linear(x, packed), wanted)
    with_bias = kernels.pack(weight, bias)
    out = residual.clone()
    assert kernels.linear(x, with_bias, residual=out, out=out) is out
    close(out, wanted + bias.double() + residual.double())


@each_set
@each_dtype
def test_linear_takes_rows_that_lie_apart(name: str, dtype: torch.dtype) -> None:
    kernels = load(name)
    wide = random(5, 100, dtype=dtype)
    packed = kernels.pack(random(40, 30, dtype=dtype, seed=1))
    out = torch.zeros(5, 50, dtype=dtype)
    kernels.linear(wide[:, 10:40], packed, out=out[:, :40])
    assert torch.equal(out[:, :40], kernels.linear(wide[:, 10:40].contiguous(), packed))
    assert not out[:, 40:].any()


@each_set
@each_dtype
@pytest.mark.parametrize("shape", [(25, 77, 333), (130, 150, 300)], ids=str)
def test_bits_depend_neither_on_threads_nor_on_company(
    name: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    rows, columns, width = shape
    x = random(rows, columns, dtype=dtype)
    weight = random(width, columns, dtype=dtype, seed=1)
    outputs = []
    for threads in (1, 2, 3, 7):
        kernels = load(name, threads)
        packed = kernels.pack(weight)
        outputs.append(kernels.linear(x, packed))
        assert torch.equal(kernels.linear(x[-1:], packed)[0], outputs[-1][-1])
        for count in (1, 2, 3, 5, 8, 12, 13, 31, 64, 97):
            assert torch.equal(kernels.linear(x[:count], packed), outputs[0][:count])
    assert all(torch.equal(out, outputs[0]) for out in outputs)


def test_linear_refuses_what_does_not_fit() -> None:
    kernels = load("portable")
    packed = kernels.pack(random(33, 64, dtype=torch.float32))
    x, out = random(6, 64, dtype=torch.float32), torch.zeros(6, 50)[:, :33]
    for wrong in (x[:, :60], x.bfloat16(), random(64, 6, dtype=torch.float32).T):
        with pytest.raises(
            ValueError, match=r"the weight takes contiguous rows of 64 numbers in torch\.float32"
        ):
            kernels.linear(wrong, packed)
    with pytest.raises(ValueError, match="the row stride of residual is 33 and that of out 50"):
        kernels.linear(x, packed, residual=torch.zeros(6, 33), out=out)


def test_pack_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="float16"):
        load("portable").pack(torch.zeros(4, 4, dtype=torch.float16))


@each_plain_set
@each_dtype
@few
@given(rows=st.integers(1, 9), width=st.integers(1, 100), offset=st.sampled_from([0.0, 1.0]))
def test_rms_norm(name: str, dtype: torch.dtype, rows: int, width: int, offset: float) -> None:
    x, weight = random(rows, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    out = load(name).rms_norm(x, weight, 1e-6, offset)
    close(out, functional.rms_norm(x.double(), (width,), weight.double() + offset, 1e-6))


@each_plain_set
@each_dtype
@few
@given(rows=st.integers(1, 9), width=st.integers(2, 100), biased=st.booleans())
def test_layer_norm(name: str, dtype: torch.dtype, rows: int, width: int, biased: bool) -> None:
    x, weight = random(rows, width, dtype=dtype) + 3, random(width, dtype=dtype, seed=1)
    bias = random(width, dtype=dtype, seed=2) if biased else None
    exact = (weight.double(), None if bias is None else bias.double())
    wanted = functional.layer_norm(x.double(), (width,), *exact, 1e-5)
    close(load(name).layer_norm(x, weight, bias, 1e-5), wanted)


@each_plain_set
@each_dtype
@pytest.mark.parametrize("dim", [6, 32, 64, 80])
@pytest.mark.parametrize("norms", [False, True])
def test_rope(name: str, dtype: torch.dtype, dim: int, norms: bool) -> None:
    kernels, rows, heads, half = load(name), 7, 5, dim // 2
    fused = random(rows, (heads + 4) * dim, dtype=dtype).view(rows, -1, dim)
    query, key, value = fused[:, :heads], fused[:, heads : heads + 2], fused[:, heads + 2 :]
    before = fused.double().clone()
    angles = torch.randn(20, half)
    cos, sin = angles.cos(), angles.sin()
    positions = torch.tensor([3, 0, 19, 4, 4, 7, 1])
    weights = [random(dim, dtype=dtype, seed=seed) for seed in (1, 2)] if norms else [None, None]
    kernels.rope(query, key, cos, sin, positions, *weights, eps=1e-5)
    for found, old, weight in zip(
        (query, key), (before[:, :heads], before[:, heads : heads + 2]), weights, strict=True
    ):
        if weight is not None:
            # normalised heads are rounded before they are rotated
            old = functional.rms_norm(old, (dim,), weight.double(), 1e-5).to(dtype).double()
        first, second = old[..., :half], old[..., half:]
        c, s = cos[positions][:, None].double(), sin[positions][:, None].double()
        close(found, torch.cat([first * c - second * s, second * c + first * s], -1))
    assert torch.equal(value.double(), before[:, heads + 2 :])


@each_plain_set
@each_dtype
@pytest.mark.parametrize("width", [1, 37, 64, 300])
def test_gates(name: str, dtype: torch.dtype, width: int) -> None:
    kernels = load(name)
    both = random(4, 2 * width, dtype=dtype) * 4
    gates, values = both.double().chunk(2, -1)
    close(kernels.silu_mul(both), functional.silu(gates) * values)
    close(kernels.gelu_mul(both), functional.gelu(gates, approximate="tanh") * values)


@each_plain_set
@each_dtype
@few
@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 70) | st.just(30000),
    seed=st.integers(0, 99),
    odd=st.sampled_from([None, float("nan"), float("inf"), float("-inf")]),
)
def test_argmax(
    name: str, dtype: torch.dtype, rows: int, width: int, seed: int, odd: float | None
) -> None:
    logits = random(rows, width, dtype=dtype, seed=seed)
    if odd is not None:
        logits[seed % rows, seed % width] = odd
    assert torch.equal(load(name).argmax(logits), logits.argmax(-1))


@each_plain_set
def test_argmax_takes_the_first_of_equals(name: str) -> None:
    kernels = load(name)
    logits = torch.full((3, 9000), float("-inf"))
    logits[1, [17, 8999]] = 1.0
    logits[2, [44, 5000]] = float("nan")
    assert kernels.argmax(logits).tolist() == [0, 17, 44]
