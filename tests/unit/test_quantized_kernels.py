"""Products with quantised weights against float64, on every instruction set."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import WeightFormat
from unit.cpu_kernels import SETS, load

pytestmark = pytest.mark.heavy


ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
"""Error of a result, relative to it."""

each_set = pytest.mark.parametrize("name", SETS)
few = settings(max_examples=20, deadline=None)
formats = st.builds(WeightFormat, st.sampled_from([4, 8]), st.sampled_from([16, 32, 64, 128]))


def matrix(
    weight_format: WeightFormat,
    outputs: int,
    inputs: int,
    *,
    offsets: bool = False,
    seed: int = 0,
    magnitude: float = 1.0,
) -> QuantizedMatrix:
    """Return random codes; scales and offsets are numbers of 11 bits, as the kernels store them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (outputs, inputs)
    codes = torch.randint(
        256, weight_format.codes_shape(shape), dtype=torch.uint8, generator=generator
    )

    def scales() -> Tensor:
        drawn = torch.randn(weight_format.scales_shape(shape), generator=generator)
        return drawn.half().float() * magnitude

    return QuantizedMatrix(weight_format, shape, codes, scales(), scales() if offsets else None)


def rows_of(count: int, columns: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(count, 1, generator=generator).exp()
    return (torch.randn(count, columns, generator=generator) * spread).to(dtype)


def rounded(x: Tensor, group: int) -> Tensor:
    """Return what a kernel may compute with, and its distance from ``x``: half a step of 127."""
    padded = torch.nn.functional.pad(x.double(), (0, -x.shape[1] % group))
    groups = padded.unflatten(1, (-1, group))
    steps = groups.abs().amax(2, keepdim=True) / 127
    return steps.expand_as(groups).flatten(1)[:, : x.shape[1]]


def check(
    found: Tensor,
    x: Tensor,
    weight: QuantizedMatrix,
    added: Tensor | float = 0.0,
    products: str = "integer",
) -> None:
    """The error is at most that of rounding activations, and the result, and sums in float32; where
    bfloat16 is multiplied with codes that were widened, weights are rounded, and no activation."""
    dense = weight.dequantized().double()
    wanted = x.double() @ dense.T + added
    weight_format, sizes = weight.weight_format, x.double().abs() @ dense.abs().T
    if products == "widened" and x.dtype is torch.bfloat16:
        allowed = sizes * 2**-8  # half of a weight's last place, of 8 bits
        if weight.offsets_OG is not None:  # rounded beside 2**15 or 2**16 scales (widened_codes.h)
            scales = weight.scales_OG.abs().repeat_interleave(weight_format.group_size, 1)
            share = 2**-24 * (2**15 if weight_format.bits == 4 else 2**16)
            allowed += x.double().abs() @ scales[:, : x.shape[1]].double().T * share
        allowed = allowed * 1.01 + ROUNDING[x.dtype] * wanted.abs()
    else:
        allowed = rounded(x, weight_format.group_size) @ dense.abs().T * 0.501
        allowed += ROUNDING[x.dtype] * (wanted.abs() + sizes * 0.1)
    excess = (found.double() - wanted).abs() - allowed
    assert not (excess > 1e-30).any(), f"{float(excess.max())} beyond the bound"


@each_set
@few
@given(
    weight_format=formats,
    rows=st.integers(1, 30) | st.sampled_from([95, 96, 97, 200]),
    columns=st.integers(1, 300),
    width=st.integers(1, 100),
    offsets=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_linear(
    name: str,
    weight_format: WeightFormat,
    rows: int,
    columns: int,
    width: int,
    offsets: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    kernels = load(name)
    weight = matrix(weight_format, width, columns, offsets=offsets, seed=seed)
    x = rows_of(rows, columns, dtype, seed)
    bias, residual = rows_of(2, width, dtype, 1)[0], rows_of(rows, width, dtype, 2)
    products = kernels.quantized_products
    check(kernels.linear(x, kernels.pack_quantized(weight)), x, weight, products=products)
    out = residual.clone()
    packed = kernels.pack_quantized(weight, bias)
    assert kernels.linear(x, packed, residual=out, out=out) is out
    check(out, x, weight, bias.double() + residual.double(), products)


@each_set
def test_dot_products_are_exact(name: str) -> None:
    """Activations that are whole numbers up to 127 are not rounded, and no sum overflows."""
    kernels = load(name)
    for bits in (4, 8):
        for code, number in ((0, 127), (0, -127), ((1 << bits) - 1, 127), ((1 << bits) - 1, -127)):
            weight_format = WeightFormat(bits, 128)  # type: ignore[arg-type]
            stored = code | code << 4 if bits == 4 else code
            codes = torch.full(weight_format.codes_shape((40, 256)), stored, dtype=torch.uint8)
            weight = QuantizedMatrix(weight_format, (40, 256), codes, torch.ones(40, 2))
            x = torch.full((5, 256), float(number))
            wanted = torch.full((5, 40), float(256 * number * (code - weight_format.middle)))
            assert torch.equal(kernels.linear(x, kernels.pack_quantized(weight)), wanted)


each_dtype = pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
"""With bfloat16, sets with tile registers widen codes."""


@each_set
@each_dtype
@pytest.mark.parametrize("bits", [4, 8])
def test_the_bits_of_a_row_do_not_depend_on_the_batch(
    name: str, dtype: torch.dtype, bits: int
) -> None:
    weight = matrix(WeightFormat(bits, 32), 300, 416, offsets=True)  # type: ignore[arg-type]
    x = rows_of(700, 416, dtype)
    kernels, alone = load(name, 2), load(name, 1)
    packed = kernels.pack_quantized(weight)
    whole = kernels.linear(x, packed)
    for first, last in pairwise((0, 1, 3, 6, 11, 19, 31, 43, 56, 87, 151, 248, 583, 700)):
        assert torch.equal(alone.linear(x[first:last], packed), whole[first:last])
        assert torch.equal(kernels.linear(x[first:last], packed), whole[first:last])


@each_set
@each_dtype
@pytest.mark.parametrize("spoiled", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spoils_its_row_alone(
    name: str, dtype: torch.dtype, spoiled: float
) -> None:
    kernels = load(name)
    packed = kernels.pack_quantized(matrix(WeightFormat(8, 32), 64, 200))
    x = rows_of(7, 200, dtype)
    sound = kernels.linear(x, packed)
    x[3, 199] = spoiled
    found = kernels.linear(x, packed)
    if dtype is torch.bfloat16 and kernels.quantized_products == "widened":
        assert not found[3].isfinite().any()  # an infinite number times a code is infinite
    else:
        assert found[3].isnan().all()
    keep = [0, 1, 2, 4, 5, 6]
    assert torch.equal(found[keep], sound[keep])


@each_set
@pytest.mark.parametrize(
    ("of_weights", "of_activations"),
    [(2.0**-100, 1.0), (2.0**100, 1.0), (1.0, 1e-30), (1.0, 1e30)],
)
def test_numbers_of_any_magnitude(name: str, of_weights: float, of_activations: float) -> None:
    kernels = load(name)
    weight = matrix(WeightFormat(8, 32), 40, 100, offsets=True, magnitude=of_weights)
    packed = kernels.pack_quantized(weight)
    x = rows_of(4, 100, torch.float32) * of_activations
    check(kernels.linear(x, packed), x, weight)
    if of_weights == 1:
        for nothing in (0.0, -0.0, 1e-40):
            assert not kernels.linear(torch.full((2, 100), nothing), packed).any()


def test_scales_keep_eleven_bits() -> None:
    kernels = load("portable")
    weight = matrix(WeightFormat(4, 32), 33, 100, magnitude=math.pi)
    assert weight.scales_OG.half().float().ne(weight.scales_OG).any()
    found = kernels.linear(torch.eye(100) * 127, kernels.pack_quantized(weight)).T / 127
    wanted = weight.dequantized()
    assert float(((found - wanted).abs() / wanted.abs().clamp(1e-9)).max()) <= 1 / 2048


@pytest.mark.parametrize("which", ["scales_OG", "offsets_OG"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_scales_that_are_not_finite_are_refused(which: str, number: float) -> None:
    kernels = load("portable")
    weight = matrix(WeightFormat(4, 32), 33, 100, offsets=True)
    getattr(weight, which)[32, 1] = number
    with pytest.raises(ValueError, match="not finite"):
        kernels.pack_quantized(weight)


def test_rows_of_another_width_are_refused() -> None:
    kernels = load("portable")
    packed = kernels.pack_quantized(matrix(WeightFormat(4, 32), 33, 100))
    with pytest.raises(ValueError, match="contiguous rows of 100 numbers"):
        kernels.linear(torch.ones(3, 99), packed)
